"""The live probe: the weights on the GPU take what an NVFP4 checkpoint takes.

The word that an engine reports for its quantization can be wrong (SGLang's repeats the command line); the bytes
that loading took cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.verify.receipt import CheckResult, Status

if TYPE_CHECKING:
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Endpoint

TOLERANCE = 0.05
"""Allowed difference; experts in FP8 would take 1.8 times as much, in BF16 3.6 times. Measured: a BF16 model of Kimi's
proportions took 60.39 GiB on an H200 (vLLM 0.26.0) where the plan's arithmetic says 60.32: +0.1%."""

SLACK_BYTES = 512 * 2**20
"""Allowed besides: what the allocator keeps while it loads, which counts only for a small model."""


def probe(plan: Plan, endpoint: Endpoint) -> CheckResult:
    """Compare the weights' memory that the engine measured while loading with the plan's, on one GPU."""
    measured, proof = _measured_bytes(plan, endpoint)
    planned = plan.budget.weight_bytes
    if measured is None:
        return _result(planned, "nothing", proof, Status.UNPROVEN)
    kept = abs(measured - planned) <= TOLERANCE * planned + SLACK_BYTES
    why = f"{(measured - planned) / planned:+.1%} of the plan, {TOLERANCE:.0%} and 0.5 GiB allowed"
    return _result(planned, f"{measured / 2**30:.2f} GiB", proof, Status.PASS if kept else Status.FAIL, why)


def _measured_bytes(plan: Plan, endpoint: Endpoint) -> tuple[int | None, str]:
    if plan.engine.backend != "sglang":
        return None, f"{plan.engine.backend} reports the memory of its weights in its log only"
    info = endpoint.get_json("/server_info") or {}
    states = info.get("internal_states") or [{}]
    gib = (states[0].get("memory_usage") or {}).get("weight") if isinstance(states[0], dict) else None
    if gib:
        return round(float(gib) * 2**30), "/server_info internal_states[0].memory_usage.weight"
    name = "sglang:weight_memory_usage_gb"
    ranks = [sample.value for sample in endpoint.metrics().find(name) if sample.value > 0]
    if ranks:
        return round(max(ranks) * 2**30), name
    return None, f"neither /server_info nor the metric {name} says what the weights take"


def _result(planned: int, says: str, proof: str, status: Status, why: str = "") -> CheckResult:
    return CheckResult(
        id="quant-nvfp4/weight-memory",
        promised_by="quant-nvfp4",
        asked=f"{planned / 2**30:.2f} GiB of weights on a GPU",
        engine_says=says,
        proof=proof,
        status=status,
        why=why,
    )
