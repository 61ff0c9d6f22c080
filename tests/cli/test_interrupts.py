"""Ctrl-C is answered at once, however long it takes to stop."""

from __future__ import annotations

import signal

import pytest

from optistack.cli.interrupts import told_at_once


def test_an_interrupt_is_told_before_things_are_taken_down(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), told_at_once():
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == "Stopping.\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
