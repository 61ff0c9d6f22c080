"""SIGTERM and SIGHUP unwind as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from optistack.apply.termination import Interrupted, termination_raises


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_the_signal_is_an_interrupt_within_the_block_only(signum: signal.Signals) -> None:
    before = signal.getsignal(signum)
    with pytest.raises(KeyboardInterrupt) as caught, termination_raises():
        os.kill(os.getpid(), signum)
    assert isinstance(caught.value, Interrupted) and caught.value.signum == signum
    assert signal.getsignal(signum) is before


def test_an_ignored_hang_up_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with termination_raises():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_leaves_the_handlers_alone() -> None:
    seen = []

    def look() -> None:
        with termination_raises():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
