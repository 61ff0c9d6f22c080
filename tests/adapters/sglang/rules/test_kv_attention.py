"""Rules about KV and the kernels that read it."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.settings import CacheTier, KVLayout, Serving, Speculation, choose
from optistack_adapters.sglang.rules.attention import RULES as ATTENTION
from optistack_adapters.sglang.rules.kv import RULES as KV

GB = 10**9
TP4: dict[str, Any] = {"parallel": {"tensor": 4}}
GPU1: dict[str, Any] = {"facts": "llama", "node": "h200x1"}
B1: dict[str, Any] = {"facts": "llama", "node": "b200x1"}


def kv(dtype: str, **more: Any) -> KVLayout:
    return KVLayout(dtype=choose(dtype), **{name: choose(value) for name, value in more.items()})


def speculation(method: str = "dflash", **more: Any) -> Speculation:
    fields = {"draft_checkpoint": "some/draft", "num_draft_tokens": 7, **more}
    return Speculation(method=choose(method), **{name: choose(value) for name, value in fields.items() if value})


def host(**more: Any) -> CacheTier:
    fields = {"capacity_bytes": 40 * GB, **more}
    return CacheTier(level=2, **{name: choose(value) for name, value in fields.items() if value is not None})


def kernels(attention: str, **more: Any) -> dict[str, Any]:
    return {"serving": {"attention_backend": attention, **more}}


CASES: dict[str, Any] = {
    "sglang-mla-nvfp4-kv": (((kv("nvfp4"),), TP4), ((kv("nvfp4"),), B1)),
    "sglang-nvfp4-kv-hardware": (((kv("nvfp4"),), GPU1), ((kv("nvfp4"),), B1)),
    "sglang-nvfp4-kv-dflash": (((kv("nvfp4"), speculation()), B1), ((kv("nvfp4"), speculation("eagle3")), B1)),
    "sglang-nvfp4-kv-tiers": (((kv("nvfp4"), host()), B1), ((kv("fp8_e4m3"), host()), B1)),
    "sglang-trtllm-mla-kv-dtype": (((kv("fp8_e5m2"),), TP4), ((kv("bfloat16"),), TP4)),
    "sglang-kv-dtype-unsayable": (((kv("float16"),), GPU1), ((kv("bfloat16"),), GPU1)),
    "sglang-page-size": (
        (
            (kv("bfloat16", page_size_tokens=1), Serving(prefill_attention_backend=choose("trtllm_mla"))),
            {**TP4, **kernels("fa4")},
        ),
        ((kv("bfloat16", page_size_tokens=32),), TP4),
    ),
    "sglang-chunk-of-pages": (
        ((), {**TP4, "serving": {"chunked_prefill_tokens": 8200}}),
        ((), {**TP4, "serving": {"chunked_prefill_tokens": 8192}}),
    ),
    "sglang-draft-kv-dtype": (
        ((kv("fp8_e4m3", draft_dtype="bfloat16"), speculation()), {**TP4, "version": "0.5.17"}),
        ((kv("fp8_e4m3", draft_dtype="bfloat16"), speculation()), {**TP4, "version": "0.5.18"}),
    ),
    "sglang-fa3-fp8-e5m2": (((kv("fp8_e5m2"),), GPU1), ((kv("fp8_e4m3"),), GPU1)),
    "sglang-attention-gpu": (((), {**GPU1, **kernels("trtllm_mla")}), ((), TP4)),
    "sglang-attention-mla-only": (((), {**B1, **kernels("trtllm_mla")}), ((), B1)),
    "sglang-attention-not-mla": (((), {**TP4, **kernels("trtllm_mha")}), ((), TP4)),
    "sglang-heads-over-ranks": (
        ((), {"facts": "llama", "node": "h200x8", "parallel": {"tensor": 5}}),
        ((), {"facts": "llama", "node": "h200x8", "parallel": {"tensor": 8}}),
    ),
    "sglang-torch-native-graphs": (
        ((), {**GPU1, **kernels("torch_native", cuda_graphs=True)}),
        ((), {**GPU1, **kernels("torch_native", cuda_graphs=False)}),
    ),
}
"""A plan on which the rule fires, and one on which it does not: settings, and the rest of the stack."""


def test_every_rule_has_a_case() -> None:
    assert {rule.id for rule in (*KV, *ATTENTION)} == set(CASES) | {"sglang-trtllm-mla-bfloat16-word"}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_fires_and_does_not(rule: str, plan_of: Any, fired: Any) -> None:
    bad, good = CASES[rule]
    message = fired(plan_of(bad)).get(rule)
    assert message is not None
    assert "{" not in message
    assert rule not in fired(plan_of(good))


def test_the_word_bfloat16_is_refused_for_trtllm_mla(plan_of: Any, fired: Any, launched: Any) -> None:
    context = plan_of(((kv("bfloat16"),), TP4))
    rule = "sglang-trtllm-mla-bfloat16-word"
    assert rule in fired(launched(context, **{"--kv-cache-dtype": "bfloat16"}))
    assert rule not in fired(context)
