"""The launches of the ready stacks, word for word. After a deliberate change: `make golden`, and read the diff."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from optistack.backend import get_backend
from optistack.host import Host
from optistack.plan.build import build_plan
from optistack.plan.plan import Plan
from optistack.stack.loader import load_stack

ROOT = Path(__file__).parents[2]
LAUNCHES = Path(__file__).parent / "launches"
STACKS = ("kimi-k2.6-b200x4", "kimi-k2.6-b300x4")


@pytest.fixture(autouse=True)
def no_engine_and_no_checkpoint_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))


def written(plan: Plan) -> str:
    lines = []
    for launch in plan.launches:
        lines.append(f"replica {launch.replica}: python {' '.join(launch.command)}")
        for argument in launch.arguments:
            lines.append(f"  {argument.flag}" if argument.value is None else f"  {argument.flag} {argument.value}")
        lines += [f"  {variable.name}={variable.value}" for variable in launch.variables]
        for file in launch.files:
            lines += [f"  file {file.name}:", *(f"    {line}" for line in file.content.splitlines())]
    lines.append(f"KV tokens: {plan.budget.kv_tokens}")
    return "\n".join(lines).replace(str(ROOT), "REPOSITORY") + "\n"


@pytest.mark.parametrize("backend", ["sglang", "vllm"])
@pytest.mark.parametrize("stack", STACKS)
def test_the_launch_is_the_golden_one(stack: str, backend: str) -> None:
    host = Host.from_environment()
    spec = load_stack(ROOT / "stacks" / f"{stack}.yaml", host)
    plan = build_plan(spec, host, get_backend(backend))
    assert not plan.refused
    golden = LAUNCHES / f"{stack}.{backend}.txt"
    if os.environ.get("OPTISTACK_WRITE_GOLDEN"):
        golden.write_text(written(plan))
    assert written(plan) == golden.read_text()
