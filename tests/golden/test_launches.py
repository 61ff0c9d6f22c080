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
from optistack.stack.overrides import Overrides

ROOT = Path(__file__).parents[2]
LAUNCHES = Path(__file__).parent / "launches"
VERSIONS: list[tuple[str, str, list[str]]] = [
    # A draft in BF16 beside FP8 KV, as the stack has it, came with 0.5.18.
    ("sglang", "0.5.17", ["sglang-draft-kv-dtype"]),
    ("sglang", "0.5.21", []),
    ("sglang", "0.5.23", []),
    ("vllm", "0.26.0", []),
    ("vllm", "0.32.0", []),
    ("vllm", "0.33.0", []),
]


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
    lines += [f"refused: {finding.message} ({finding.rule})" for finding in plan.errors]
    return "\n".join(lines).replace(str(ROOT), "REPOSITORY") + "\n"


def check(golden: Path, plan: Plan) -> None:
    if os.environ.get("OPTISTACK_WRITE_GOLDEN"):
        golden.write_text(written(plan))
    assert written(plan) == golden.read_text()


@pytest.mark.parametrize("backend", ["sglang", "vllm"])
@pytest.mark.parametrize("stack", ["kimi-k2.6-b300x4"])
def test_the_launch_is_the_golden_one(stack: str, backend: str) -> None:
    host = Host.from_environment()
    spec = load_stack(ROOT / "stacks" / f"{stack}.yaml", host)
    plan = build_plan(spec, host, get_backend(backend))
    assert not plan.refused
    check(LAUNCHES / f"{stack}.{backend}.txt", plan)


@pytest.mark.parametrize("backend, version, refused_by", VERSIONS, ids=[f"{v[0]}-{v[1]}" for v in VERSIONS])
def test_every_version_gets_its_own_launch_or_a_reason(backend: str, version: str, refused_by: list[str]) -> None:
    plan = planned(backend, version)
    assert (plan.engine.version, plan.flag_check.against) == (version, f"the snapshot of {backend} {version}")
    assert not plan.flag_check.problems
    assert [finding.rule for finding in plan.errors] == refused_by
    check(LAUNCHES / f"kimi-k2.6-b200x4.{backend}-{version}.txt", plan)


def test_what_the_reason_says_is_the_way_out() -> None:
    plan = planned("sglang", "0.5.17", "kv-fp8.draft_dtype=same")
    assert not plan.refused
    check(LAUNCHES / "kimi-k2.6-b200x4.sglang-0.5.17.one-kv-dtype.txt", plan)


def planned(backend: str, version: str, *settings: str) -> Plan:
    host = Host.from_environment()
    overrides = Overrides(settings=settings, keys={"--engine-version": (("engine", "version"), version)})
    spec = load_stack(ROOT / "stacks/kimi-k2.6-b200x4.yaml", host, overrides)
    return build_plan(spec, host, get_backend(backend))
