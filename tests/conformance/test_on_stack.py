"""``conformance --stack``: what cannot be started on this machine is known before the baseline is measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from optistack.engines.progress import SILENT
from optistack.errors import PlanRefusedError
from optistack_conformance import on_stack


@pytest.mark.parametrize("lacking", ["whole", "plain"])
def test_a_stack_that_cannot_start_costs_no_baseline(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    def check_start(plan: str, host: object, python: str) -> None:
        if plan == lacking:
            raise PlanRefusedError("The disk is full.")

    monkeypatch.setattr(on_stack, "check_start", check_start)
    monkeypatch.setattr(on_stack, "attached", lambda *_, **__: pytest.fail("an engine was started"))
    with pytest.raises(PlanRefusedError, match="The disk is full"):
        on_stack.run_stack(_ready("whole"), _ready("plain"), {}, junit=None, progress=SILENT)


def _ready(plan: str) -> Any:
    return SimpleNamespace(plan=plan, host=None, python="python", engine_env={})
