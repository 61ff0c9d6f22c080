"""The receipt's line about the memory of the weights: what the engine says that loading took, against the plan."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from optistack.backend import Backend
from optistack.facts.node import GIB, MIB
from optistack.host import Host
from optistack.memory import MemoryBudget
from optistack.memory.lines import MemoryLine
from optistack.plan.plan import Plan
from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import CheckResult, Observed, Status
from optistack.verify.verify import verify

LINE = "budget.weight_bytes"
DRAFT_BYTES = 3 * GIB


@pytest.fixture
def plan(make_plan: Callable[..., Plan]) -> Plan:
    """Kimi K2.6 with NVFP4 experts and a draft on four GPUs."""
    return make_plan().model_copy(update={"plugins": ()})


def check(plan: Plan, seen: Observed | None, url: str = "http://engine") -> CheckResult | None:
    """The line of an engine about which ``seen`` is observed; None when the receipt has no such line."""
    observed: Mapping[str, Observed] = {} if seen is None else {LINE: seen}
    backend = cast("Backend", SimpleNamespace(name="b", observe=lambda endpoint, log: observed))
    transport = httpx.MockTransport(lambda request: httpx.Response(404))
    with Endpoint(url, transport=transport) as endpoint:
        receipt = verify(plan, endpoint, Host(), backend)
    return next((line for line in receipt.results if line.id == LINE), None)


def measured(size: float) -> Observed:
    return Observed(value=round(size), proof="log: a line")


def with_budget(plan: Plan, **changes: Any) -> Plan:
    return plan.model_copy(update={"budget": MemoryBudget.model_copy(plan.budget, update=changes)})


def test_weights_and_draft_that_take_what_was_planned_pass(plan: Plan) -> None:
    assert plan.budget.loaded_bytes == plan.budget.weight_bytes + DRAFT_BYTES
    line = check(plan, measured(plan.budget.loaded_bytes * 1.001))
    assert line is not None
    assert (line.status, line.promised_by, line.proof) == (Status.PASS, "plan", "log: a line")
    assert line.asked == f"{plan.budget.loaded_bytes / GIB:.2f} GiB"
    assert line.why == "+0.10% of the plan, 2% and 0.5 GiB allowed"


@pytest.mark.parametrize("factor", [16 / 9, 32 / 9, 0.5])
def test_experts_in_another_precision_or_half_of_them_fail(plan: Plan, factor: float) -> None:
    """FP8 and BF16 in the place of NVFP4, whose scales make it 9 bits for 2 values."""
    experts = next(line.bytes for line in plan.budget.weights if line.label == "routed experts")
    line = check(plan, measured(plan.budget.loaded_bytes + (factor - 1) * experts))
    assert line is not None
    assert line.status is Status.FAIL


@pytest.mark.parametrize(("more", "status"), [(500 * MIB, Status.PASS), (530 * MIB, Status.FAIL)])
def test_a_small_model_has_half_a_gib_to_spare(plan: Plan, more: int, status: Status) -> None:
    small = MemoryLine(label="dense mlp", bytes=100 * MIB)
    line = check(with_budget(plan, weights=(small,), charges=()), measured(small.bytes + more))
    assert line is not None
    assert line.status is status


HERE = "http://127.0.0.1:8000"


def of_device(size: float) -> Observed:
    return measured(size).model_copy(update={"whole_device": True})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two programs are on each GPU; the list has the devices that were asked about."""
    devices: list[str] = []
    said = "2 programs are on its GPU"
    monkeypatch.setattr("optistack.facts.gpu_users.sharing", lambda visible: devices.append(visible) or said)
    return devices


def test_a_difference_of_free_memory_proves_nothing_on_a_shared_gpu(plan: Plan, asked: list[str]) -> None:
    for factor in (0.5, 2.0):
        line = check(plan, of_device(plan.budget.loaded_bytes * factor), HERE)
        assert line is not None
        assert line.status is Status.UNPROVEN
        assert "2 programs are on its GPU, and what the others took or gave back meanwhile is in it" in line.why
    assert asked == ["0,1,2,3"] * 2


def test_what_an_engine_counts_for_itself_fails_on_a_shared_gpu_too(plan: Plan, asked: list[str]) -> None:
    line = check(plan, measured(plan.budget.loaded_bytes * 2), HERE)
    assert line is not None
    assert line.status is Status.FAIL


def test_the_gpus_of_this_machine_say_nothing_of_another_machines(plan: Plan, asked: list[str]) -> None:
    line = check(plan, of_device(plan.budget.loaded_bytes * 2), "http://10.0.0.7:8000")
    assert line is not None
    assert (line.status, asked) == (Status.FAIL, [])


def test_a_gpu_of_its_own_shows_the_wrong_precision(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """BF16 in the place of NVFP4, by an engine whose process on each of four GPUs is of one session."""
    engine = subprocess.Popen(["sleep", "60"])
    listing = "".join(f"GPU-{gpu}, {pid}\n" for gpu in range(4) for pid in (os.getpid(), engine.pid))
    monkeypatch.setattr("optistack.facts.gpu_users.nvidia_smi", lambda *_: listing)
    try:
        line = check(plan, of_device(plan.budget.loaded_bytes * 60 / 25), HERE)
    finally:
        engine.kill()
        engine.wait()
    assert line is not None
    assert line.status is Status.FAIL


def test_a_figure_that_fits_passes_on_a_shared_gpu(plan: Plan, asked: list[str]) -> None:
    line = check(plan, of_device(plan.budget.loaded_bytes), HERE)
    assert line is not None
    assert (line.status, asked) == (Status.PASS, [])


def test_a_gpu_engine_that_does_not_say_it_leaves_it_unproven(plan: Plan) -> None:
    for seen in (None, Observed(value=None, proof="the log would say it")):
        line = check(plan, seen)
        assert line is not None
        assert (line.status, line.engine_says) == (Status.UNPROVEN, "nothing")
        assert line.proof == (seen.proof if seen else "the engine gives no evidence of this")


def test_on_a_cpu_there_is_a_line_only_where_the_engine_says_it(plan: Plan) -> None:
    on_cpu = with_budget(plan, device="cpu")
    assert check(on_cpu, None) is None
    assert check(on_cpu, Observed(value=None, proof="the log would say it")) is None
    line = check(on_cpu, measured(plan.budget.loaded_bytes))
    assert line is not None
    assert line.status is Status.PASS
