"""Each rule, firing and not firing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

import optistack_kv_fp8
from optistack.facts.model import Quantization
from optistack.plugin import Domain
from optistack.rules import Severity

Change = Callable[[Any, Any], Any]


def calibrated(model: Any, *, strategy: str = "tensor") -> Any:
    """``model`` with KV scales in compressed-tensors' form, as `optistack kv-fp8 calibrate` writes them."""
    scheme = {"num_bits": 8, "type": "float", "strategy": strategy, "dynamic": False, "symmetric": True}
    metadata = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}
    quantization = Quantization(method="compressed-tensors", algo=(), kv_cache_algo="FP8", raw=metadata)
    return model.model_copy(update={"kv_scales": True, "quantization": quantization})


# rule id -> (a plan that fires it, one that does not); both get the world and a small GQA model
CASES: dict[str, tuple[Change, Change]] = {
    "kv-fp8-not-on-device": (
        lambda world, small: world.by("another", traits={"kv_dtypes": ("bfloat16",)}),
        lambda world, small: world.by("another", traits={"kv_dtypes": ("bfloat16", "fp8_e4m3")}),
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
    "vllm-mla-kv-scales-unused": (
        lambda world, small: world.by("vllm").having(kv_scales=True),
        lambda world, small: world.by("vllm").of(small.model_copy(update={"kv_scales": True})),
    ),
    "sglang-mla-scales-file": (
        lambda world, small: world.asking(scales_file="/scales.json"),
        lambda world, small: world.of(small).asking(scales_file="/scales.json"),
    ),
    "sglang-kv-scales-left-out": (
        lambda world, small: world.of(calibrated(small)).by("sglang", "0.5.17"),
        lambda world, small: world.of(calibrated(small)).by("sglang", "0.5.21"),
    ),
    "sglang-kv-scales-by-head": (
        lambda world, small: world.of(calibrated(small, strategy="attn_head")),
        lambda world, small: world.of(calibrated(small)),
    ),
    "sglang-scales-file": (
        lambda world, small: world.of(small).attending("fa3").asking(scales_file="/scales.json"),
        lambda world, small: world.of(small).attending("trtllm_mha").asking(scales_file="/scales.json"),
    ),
    "sglang-kv-scales-unused": (
        lambda world, small: world.of(calibrated(small)).on_cpu("sglang").attending("torch_native"),
        lambda world, small: world.of(calibrated(small)).on_cpu("sglang").attending("intel_amx"),
    ),
    "sglang-mla-kv-converted": (
        lambda world, small: world.on("h200x8").attending("fa3"),
        lambda world, small: world.on("h200x8").attending("flashmla"),
    ),
    "sglang-fa3-long-fp8-kv": (
        lambda world, small: world.of(small).on("h200x1").attending("fa3").reading(100_000),
        lambda world, small: world.of(small).on("h200x1").attending("fa3").reading(4_096),
    ),
    "vllm-draft-kv-model-dtype": (
        lambda world, small: world.by("vllm").having(dtype="float16").drafting(),
        lambda world, small: world.by("vllm").having(dtype="float16"),
    ),
}


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


@pytest.mark.parametrize(
    ("backend", "expected"), [("sglang", {"sglang-mla-kv-scales-unused"}), ("vllm", {"vllm-mla-kv-scales-unused"})]
)
def test_the_reference_plan_has_only_what_is_true_of_it(world: Any, backend: str, expected: set[str]) -> None:
    plan = world.by(backend).drafting()
    assert set(plan.findings()) == {"kv-fp8-scales-unseen", *expected}
    assert set(plan.having(kv_scales=True).findings()) == expected


def test_the_laptop_plan_has_only_the_warning_about_scales(world: Any, small: Any) -> None:
    assert set(world.of(small).on_cpu("vllm").drafting().findings()) == {"kv-fp8-unit-scales"}


def test_the_rule_about_a_draft_holds_for_the_versions_that_check(world: Any) -> None:
    plan = world.by("vllm", "0.32.0").having(dtype="float16").drafting()
    assert "vllm-draft-kv-model-dtype" not in plan.findings()
    same = world.by("vllm").having(dtype="float16").asking(draft_dtype="same").drafting()
    assert "vllm-draft-kv-model-dtype" not in same.findings()


@pytest.mark.parametrize(
    ("attention", "what"),
    [("fa3", "does not start"), ("triton", "does not start"), ("fa4", "multiply"), ("flashinfer", "multiply")],
)
def test_what_becomes_of_a_scales_file_on_sglang_is_said(world: Any, small: Any, attention: str, what: str) -> None:
    plan = world.of(small).attending(attention).asking(scales_file="/scales.json")
    finding = plan.findings()["sglang-scales-file"]
    assert (finding.severity, what in finding.message) == (Severity.ERROR, True)
    beside = world.of(calibrated(small)).attending("trtllm_mha").asking(scales_file="/scales.json")
    assert "beside those of the checkpoint" in beside.findings()["sglang-scales-file"].message


def test_unit_scales_are_kept_where_the_engine_leaves_those_of_the_checkpoint(world: Any, small: Any) -> None:
    def not_kept(plan: Any) -> bool:
        return "kv-fp8-unit-scales-not-kept" in plan.asking(scales="unit").findings()

    tensor, head = world.of(calibrated(small)), world.of(calibrated(small, strategy="attn_head"))
    assert not_kept(tensor) and not_kept(tensor.by("vllm")) and not_kept(head.by("vllm"))
    assert not not_kept(tensor.by("sglang", "0.5.17")) and not not_kept(head)
    assert not_kept(world.having(kv_scales=True)) and not not_kept(world.having(kv_scales=True).by("vllm"))


def test_a_scales_file_beside_a_draft_and_one_for_e5m2_are_refused(world: Any, small: Any) -> None:
    plan = world.of(small).attending("trtllm_mha")
    drafting = plan.drafting().asking(scales_file="/scales.json").findings()["sglang-scales-file"]
    assert (drafting.severity, "draft" in drafting.message) == (Severity.ERROR, True)
    e5m2 = plan.asking(scales_file="/scales.json", dtype="fp8_e5m2").findings()["sglang-scales-file"]
    assert "none for fp8_e5m2" in e5m2.message


@pytest.mark.parametrize("attention", ["torch_native", "intel_amx"])
def test_a_scales_file_on_a_cpu_is_read_and_not_used(world: Any, small: Any, attention: str) -> None:
    plan = world.of(small).on_cpu("sglang").attending(attention).asking(scales_file="/scales.json")
    found = plan.findings()
    assert attention in found["sglang-kv-scales-unused"].message
    assert "sglang-scales-file" not in found


def test_refusals_of_a_device_let_the_plugin_be_dropped(world: Any) -> None:
    finding = world.by("another", traits={"kv_dtypes": ()}).findings()["kv-fp8-not-on-device"]
    assert (finding.severity, finding.domain) == (Severity.ERROR, Domain.KV)


@pytest.mark.parametrize("adapter", ["sglang", "vllm"])
def test_ids_are_not_those_of_an_adapter(adapter: str) -> None:
    backend = import_module(f"optistack_adapters.{adapter}").backend
    mine = {rule.id for rule in optistack_kv_fp8.optistack_rules()}
    assert not mine & {rule.id for rule in backend.rules()}
