"""Each rule, firing and not firing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import optistack_kv_fp8
from optistack.plugin import Domain
from optistack.rules import Severity
from optistack.settings import Serving

Change = Callable[[Any, Any], Any]

# rule id -> (a plan that fires it, one that does not); both get the world and a small GQA model
CASES: dict[str, tuple[Change, Change]] = {
    "kv-fp8-not-on-device": (
        lambda world, small: world.by("another", traits={"kv_dtypes": ("bfloat16",)}),
        lambda world, small: world.by("another", traits={"kv_dtypes": ("bfloat16", "fp8_e4m3")}),
    ),
    "vllm-cpu-mla-fp8-kv": (
        lambda world, small: world.on_cpu("vllm"),
        lambda world, small: world.of(small).on_cpu("vllm"),
    ),
    "vllm-cpu-fp8-kv-head-size": (
        lambda world, small: world.of(
            small.model_copy(update={"attention": small.attention.model_copy(update={"head_dim": 80})})
        ).on_cpu("vllm"),
        lambda world, small: world.of(small).on_cpu("vllm"),
    ),
    "sglang-cpu-e5m2-kv": (
        lambda world, small: world.of(small).on_cpu("sglang").asking(dtype="fp8_e5m2"),
        lambda world, small: world.of(small).on_cpu("sglang"),
    ),
    "kv-fp8-unit-scales": (
        lambda world, small: world.having(kv_scales=False),
        lambda world, small: world.having(kv_scales=True),
    ),
    "kv-fp8-unit-scales-not-kept": (
        lambda world, small: world.having(kv_scales=True).asking(scales="unit"),
        lambda world, small: world.having(kv_scales=False).asking(scales="unit"),
    ),
    "kv-fp8-scales-unseen": (
        lambda world, small: world,
        lambda world, small: world.having(kv_scales=True),
    ),
    "sglang-mla-kv-scales-unused": (
        lambda world, small: world.having(kv_scales=True),
        lambda world, small: world.of(small.model_copy(update={"kv_scales": True})),
    ),
    "sglang-mla-scales-file": (
        lambda world, small: world.asking(scales_file="/scales.json"),
        lambda world, small: world.of(small).asking(scales_file="/scales.json"),
    ),
    "vllm-scales-file": (
        lambda world, small: world.by("vllm").asking(scales_file="/scales.json"),
        lambda world, small: world.by("vllm"),
    ),
    "vllm-mla-e5m2-kv": (
        lambda world, small: world.by("vllm").asking(dtype="fp8_e5m2"),
        lambda world, small: world.by("vllm").of(small).asking(dtype="fp8_e5m2"),
    ),
    "vllm-e5m2-kv-scales": (
        lambda world, small: world.by("vllm").asking(dtype="fp8_e5m2"),
        lambda world, small: world.by("vllm").having(quantization=None).asking(dtype="fp8_e5m2"),
    ),
    "sglang-mla-e5m2-kv": (
        lambda world, small: world.asking(dtype="fp8_e5m2"),  # trtllm_mla is what SGLang picks on SM100
        lambda world, small: world.asking(dtype="fp8_e5m2").attending("triton"),
    ),
    "sglang-fa3-e5m2-kv": (
        lambda world, small: world.of(small).on("h200x1").asking(dtype="fp8_e5m2").attending("fa3"),
        lambda world, small: world.of(small).on("h200x1").attending("fa3"),
    ),
    "sglang-mla-kv-converted": (
        lambda world, small: world.on("h200x8"),  # fa3 is what SGLang picks on SM90
        lambda world, small: world.on("h200x8").attending("flashmla"),
    ),
    "sglang-fa3-long-fp8-kv": (
        lambda world, small: world.of(small).on("h200x1").attending("fa3").reading(100_000),
        lambda world, small: world.of(small).on("h200x1").attending("fa3").reading(4_096),
    ),
    "sglang-draft-kv-follows-target": (
        lambda world, small: world.by("sglang", "0.5.17").drafting(),
        lambda world, small: world.drafting(),
    ),
    "sglang-fa4-draft-kv": (
        lambda world, small: world.asking(draft_dtype="same").drafting(draft_attention_backend=_value("fa4")),
        lambda world, small: world.drafting(draft_attention_backend=_value("fa4")),
    ),
    "vllm-fp8-draft-kv": (
        lambda world, small: world.by("vllm").asking(draft_dtype="same").drafting(),
        lambda world, small: world.by("vllm").drafting(),
    ),
    "vllm-draft-kv-model-dtype": (
        lambda world, small: world.by("vllm").having(dtype="float16").drafting(),
        lambda world, small: world.by("vllm", "0.26.0").having(dtype="float16").drafting(),
    ),
}


def _value(word: str) -> Any:
    return Serving(attention_backend=word).attention_backend


def test_every_rule_has_a_case_and_says_what_to_do() -> None:
    rules = optistack_kv_fp8.optistack_rules()
    assert {rule.id for rule in rules} == set(CASES)
    assert all(rule.fix and rule.upstream and rule.message.endswith(".") for rule in rules)


@pytest.mark.parametrize("rule", CASES)
def test_the_rule_fires(world: Any, small: Any, rule: str) -> None:
    finding = CASES[rule][0](world, small).findings()[rule]
    assert "{detail}" not in finding.message


@pytest.mark.parametrize("rule", CASES)
def test_the_rule_does_not_fire(world: Any, small: Any, rule: str) -> None:
    assert rule not in CASES[rule][1](world, small).findings()


@pytest.mark.parametrize(("backend", "expected"), [("sglang", {"sglang-mla-kv-scales-unused"}), ("vllm", set())])
def test_the_reference_plan_has_only_what_is_true_of_it(world: Any, backend: str, expected: set[str]) -> None:
    plan = world.by(backend).drafting()
    assert set(plan.findings()) == {"kv-fp8-scales-unseen", *expected}
    assert set(plan.having(kv_scales=True).findings()) == expected


def test_the_laptop_plan_has_only_the_warning_about_scales(world: Any, small: Any) -> None:
    assert set(world.of(small).on_cpu("vllm").drafting().findings()) == {"kv-fp8-unit-scales"}


def test_rules_about_a_draft_need_a_draft(world: Any) -> None:
    for rule in ("sglang-draft-kv-follows-target", "sglang-fa4-draft-kv", "vllm-fp8-draft-kv"):
        for backend, version in (("sglang", "0.5.17"), ("vllm", "0.33.0")):
            assert rule not in world.by(backend, version).asking(draft_dtype="same").findings()


def test_refusals_of_a_device_let_the_plugin_be_dropped(world: Any) -> None:
    finding = world.on_cpu("vllm").findings()["vllm-cpu-mla-fp8-kv"]
    assert (finding.severity, finding.domain) == (Severity.ERROR, Domain.KV)


def test_sparse_models_are_not_taken_for_dense_ones(world: Any) -> None:
    sparse = world.having(config={**world.model.config, "index_topk": 2048})
    assert "sglang-mla-kv-converted" not in sparse.on("h200x8").findings()
