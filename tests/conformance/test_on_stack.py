"""``conformance --stack``: what cannot be started on this machine is known before the baseline is measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optistack.cli.options import Choice
from optistack.cli.run import run
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


STACK = Path(__file__).resolve().parents[2] / "stacks" / "kimi-k2.6-b200x4.yaml"


def test_the_backend_of_a_stack_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Choice] = []

    def planned(chosen: Choice, *_: object, **__: object) -> None:
        asked.append(chosen)
        raise PlanRefusedError("Far enough.")

    monkeypatch.setattr("optistack.cli.ready.from_stack", planned)
    assert run(["conformance", "--stack", str(STACK), "--backend", "sglang"]) == 2
    assert asked == [Choice(stack=STACK, backend="sglang")]


def test_a_server_has_its_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conformance", "--endpoint", "http://127.0.0.1:1", "--backend", "sglang"]) == 2
    assert "--backend is for a stack." in capsys.readouterr().err
