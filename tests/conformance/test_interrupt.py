"""A run of the suite that is told to stop says so, and is no failed check."""

from __future__ import annotations

from typing import Any

import pytest

from optistack_conformance import runner
from optistack_conformance.selection import Selection


def test_an_interrupted_suite_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: list[str], plugins: list[Any]) -> int:
        with pytest.raises(KeyboardInterrupt) as caught:
            raise KeyboardInterrupt
        plugins[0].pytest_keyboard_interrupt(caught)
        return int(pytest.ExitCode.INTERRUPTED)

    monkeypatch.setattr(pytest, "main", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner._run_pytest(Selection(endpoint="http://127.0.0.1:1"), None, lambda _: None)
