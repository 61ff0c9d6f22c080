"""Rules about CPUs and about quantized weights."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.settings import CacheTier, KVLayout, Serving, Speculation, WeightQuantization, choose
from optistack_adapters.sglang.rules.cpu import RULES as CPU_RULES
from optistack_adapters.sglang.rules.weights import RULES as WEIGHTS

GB = 10**9
TP4: dict[str, Any] = {"parallel": {"tensor": 4}}
GPU1: dict[str, Any] = {"facts": "llama", "node": "h200x1"}
CPU: dict[str, Any] = {"facts": "llama", "node": "cpu", "serving": {"kv_memory_gib": 1}}


def kv(dtype: str, **more: Any) -> KVLayout:
    return KVLayout(dtype=choose(dtype), **{name: choose(value) for name, value in more.items()})


def speculation(method: str = "dflash", **more: Any) -> Speculation:
    fields = {"draft_checkpoint": "some/draft", "num_draft_tokens": 7, **more}
    return Speculation(method=choose(method), **{name: choose(value) for name, value in fields.items() if value})


def host(**more: Any) -> CacheTier:
    fields = {"capacity_bytes": 40 * GB, **more}
    return CacheTier(level=2, **{name: choose(value) for name, value in fields.items() if value is not None})


def weights(**more: Any) -> WeightQuantization:
    return WeightQuantization(**{name: choose(value) for name, value in more.items()})


CASES: dict[str, Any] = {
    "sglang-cpu-dflash": (((speculation(),), CPU), ((speculation(),), GPU1)),
    "sglang-cpu-speculation": (((speculation("ngram"),), CPU), ((speculation("dflash"),), CPU)),
    "sglang-cpu-hicache": (((host(),), CPU), ((host(),), GPU1)),
    "sglang-cpu-nvfp4-checkpoint": (((), {**CPU, "facts": "kimi"}), ((), CPU)),
    "sglang-cpu-nvfp4": (((weights(engine_quantization="nvfp4_online"),), CPU), ((), CPU)),
    "sglang-cpu-fp8-e5m2-kv": (((kv("fp8_e5m2"),), CPU), ((kv("fp8_e4m3"),), CPU)),
    "sglang-cpu-graphs": (((Serving(cuda_graphs=choose(True)),), CPU), ((), CPU)),
    "sglang-ct-nvfp4-moe-auto": (
        ((), {**TP4, "facts": "compressed"}),
        ((weights(moe_backend="flashinfer_trtllm"),), {**TP4, "facts": "compressed"}),
    ),
    "sglang-ct-nvfp4-moe-runner": (
        ((weights(moe_backend="flashinfer_cutlass"),), {**TP4, "facts": "compressed"}),
        ((weights(moe_backend="flashinfer_cutlass"),), TP4),
    ),
    "sglang-ct-nvfp4-moe-blackwell": (
        ((), {"parallel": {"tensor": 8}, "facts": "compressed", "node": "h200x8", "version": "0.5.21"}),
        ((), {"parallel": {"tensor": 8}, "facts": "compressed", "node": "h200x8", "version": "0.5.23"}),
    ),
    "sglang-quantization-word": (
        ((weights(engine_quantization="fp8"),), TP4),
        ((weights(engine_quantization="modelopt_fp4"),), TP4),
    ),
    "sglang-quantization-refused": (
        ((weights(engine_quantization="modelopt_fp4"),), {**TP4, "facts": "compressed"}),
        ((weights(engine_quantization="compressed-tensors"),), {**TP4, "facts": "compressed"}),
    ),
}
"""A plan on which the rule fires, and one on which it does not: settings, and the rest of the stack."""


def test_every_rule_has_a_case() -> None:
    assert {rule.id for rule in (*CPU_RULES, *WEIGHTS)} == set(CASES)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_fires_and_does_not(rule: str, plan_of: Any, fired: Any) -> None:
    bad, good = CASES[rule]
    message = fired(plan_of(bad)).get(rule)
    assert message is not None
    assert "{" not in message
    assert rule not in fired(plan_of(good))
