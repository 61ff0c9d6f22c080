"""Each rule, firing and not firing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

import optistack_quant_nvfp4
from optistack.plugin import Domain
from optistack.rules import Severity

Change = Callable[[Any, Any], Any]
DRAFT = "--speculative-draft-model-path=draft"

# rule id -> (a plan that fires it, one that does not)
CASES: dict[str, tuple[Change, Change]] = {
    "nvfp4-no-cpu-kernel": (
        lambda world, made: world.by("vllm", "0.32.0", device="cpu").on("cpu"),
        lambda world, made: world.by("vllm", traits={"weight_formats": ("nvfp4", "fp8")}),
    ),
    "nvfp4-weight-only-gpu": (lambda world, made: world.on("h200x8"), lambda world, made: world),
    "nvfp4-weight-only-checkpoint": (
        lambda world, made: world.of(made.modelopt("W4A16_NVFP4")),
        lambda world, made: world,
    ),
    "vllm-quantization-ignored": (
        lambda world, made: world.by("vllm").saying("-q=fp8"),
        lambda world, made: world.by("vllm").saying("-q=modelopt_fp4"),
    ),
    "vllm-quantization-contradicts": (
        lambda world, made: world.by("vllm").of(made.compressed_tensors()).saying("--quantization=fp8"),
        lambda world, made: world.by("vllm").of(made.compressed_tensors()).saying("--quantization=compressed-tensors"),
    ),
    "sglang-draft-inherits-quantization": (
        lambda world, made: world.saying("--quantization=modelopt_fp4", DRAFT),
        lambda world, made: world.saying(
            "--quantization=modelopt_fp4", DRAFT, "--speculative-draft-model-quantization=unquant"
        ),
    ),
    "sglang-nvfp4-moe-runner": (
        lambda world, made: world.asking(moe_backend="triton"),
        lambda world, made: world.asking(moe_backend="flashinfer_cutedsl"),
    ),
    "sglang-flashinfer-expert-parallel": (
        lambda world, made: world.asking(moe_backend="flashinfer_cutlass").spread(tensor=8, expert=4),
        lambda world, made: world.asking(moe_backend="flashinfer_cutlass").spread(tensor=8, expert=8),
    ),
    "vllm-nvfp4-moe-backend": (
        lambda world, made: world.by("vllm", "0.26.0").asking(moe_backend="b12x"),
        lambda world, made: world.by("vllm", "0.33.0").asking(moe_backend="b12x"),
    ),
    "nvfp4-moe-backend-needs-blackwell": (
        lambda world, made: world.on("h200x8").asking(moe_backend="flashinfer_trtllm"),
        lambda world, made: world.on("h200x8"),
    ),
    "nvfp4-moe-backend-sm100-family": (
        lambda world, made: world.on("b200x4", sm=120).asking(moe_backend="flashinfer_trtllm"),
        lambda world, made: world.on("b200x4", sm=120),
    ),
}


def test_every_rule_has_a_case_and_says_what_to_do() -> None:
    rules = optistack_quant_nvfp4.optistack_rules()
    assert {rule.id for rule in rules} == set(CASES)
    assert all(rule.fix and rule.upstream and rule.message.endswith(".") for rule in rules)


@pytest.mark.parametrize("rule", CASES)
def test_the_rule_fires(world: Any, checkpoints: Any, rule: str) -> None:
    assert rule in CASES[rule][0](world, checkpoints).findings()


@pytest.mark.parametrize("rule", CASES)
def test_the_rule_does_not_fire(world: Any, checkpoints: Any, rule: str) -> None:
    assert rule not in CASES[rule][1](world, checkpoints).findings()


@pytest.mark.parametrize("backend", ["sglang", "vllm"])
@pytest.mark.parametrize("node", ["b200x4", "b300x4"])
def test_the_reference_plan_is_clean(world: Any, backend: str, node: str) -> None:
    assert world.by(backend).on(node).findings() == {}


def test_the_refusal_on_a_cpu_lets_the_plugin_be_dropped(world: Any) -> None:
    finding = world.by("vllm", "0.32.0", device="cpu").on("cpu").findings()["nvfp4-no-cpu-kernel"]
    assert (finding.severity, finding.domain) == (Severity.ERROR, Domain.QUANTIZATION)


def test_a_rule_holds_for_pre_releases_of_its_range(world: Any) -> None:
    plan = world.by("vllm", "0.32.0rc1").asking(moe_backend="b12x")
    assert "vllm-nvfp4-moe-backend" not in plan.findings()


def test_messages_name_what_was_found(world: Any, checkpoints: Any) -> None:
    asked = world.by("vllm").saying("--quantization=fp8").findings()["vllm-quantization-ignored"]
    assert "--quantization fp8 is asked and the checkpoint is modelopt_fp4" in asked.message
    layers = {"model.layers.1.mlp.experts": {"quant_algo": "NVFP4"}}
    mixed = world.by("vllm").of(checkpoints.modelopt("MIXED_PRECISION", quantized_layers=layers))
    assert "vllm-quantization-ignored" not in mixed.saying("--quantization=modelopt_mixed").findings()


@pytest.mark.parametrize("adapter", ["sglang", "vllm"])
def test_ids_are_not_those_of_an_adapter(adapter: str) -> None:
    backend = import_module(f"optistack_adapters.{adapter}").backend
    mine = {rule.id for rule in optistack_quant_nvfp4.optistack_rules()}
    assert not mine & {rule.id for rule in backend.rules()}
