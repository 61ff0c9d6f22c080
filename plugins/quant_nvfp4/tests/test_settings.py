"""What the plugin makes of a checkpoint: recognised, refused, and given its kernels."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.errors import InputError, PlanRefusedError


def words(world: Any) -> dict[str, Any]:
    return {path.removeprefix("quantization."): value.value for path, value in world.resolve().values()}


def test_a_modelopt_checkpoint_is_recognised_by_component(world: Any) -> None:
    said = words(world)
    assert (said["checkpoint_format"], said["experts"]) == ("modelopt", "nvfp4")
    assert (said["shared_experts"], said["dense"]) == ("bf16", "bf16")


def test_the_engine_is_never_given_a_quantization_word(world: Any, checkpoints: Any) -> None:
    for model in (world.model, checkpoints.compressed_tensors()):
        for backend in ("sglang", "vllm"):
            assert "engine_quantization" not in words(world.of(model).by(backend))


def test_every_setting_has_a_reason(world: Any) -> None:
    for path, value in world.resolve().values():
        assert all(origin.source == "quant-nvfp4" and origin.why for origin in value.origins), path


@pytest.mark.parametrize(
    ("backend", "node", "sm", "kernel"),
    [
        ("sglang", "b200x4", None, "flashinfer_trtllm"),
        ("sglang", "b300x4", None, "flashinfer_trtllm"),
        ("sglang", "b200x4", 120, "flashinfer_cutlass"),
        ("sglang", "h200x8", None, "marlin"),
        ("vllm", "b200x4", None, "flashinfer_trtllm"),
        ("vllm", "b300x4", None, "flashinfer_trtllm"),
        ("vllm", "b200x4", 120, None),
        ("vllm", "h200x8", None, "marlin"),
        ("another", "b200x4", None, None),
    ],
)
def test_the_experts_kernel_follows_the_gpu_and_the_engine(
    world: Any, backend: str, node: str, sm: int | None, kernel: str | None
) -> None:
    assert words(world.by(backend).on(node, sm=sm)).get("moe_backend") == kernel


def test_compressed_tensors_experts_get_their_kernel_by_name_on_sglang(world: Any, checkpoints: Any) -> None:
    plan = world.of(checkpoints.compressed_tensors())
    assert words(plan)["checkpoint_format"] == "compressed-tensors"
    assert words(plan)["moe_backend"] == "flashinfer_trtllm"
    assert "moe_backend" not in words(plan.on("h200x8"))  # SGLang takes Marlin by itself and asserts on other names


def test_kernels_for_linear_layers_are_named_only_when_some_are_nvfp4(world: Any, checkpoints: Any) -> None:
    assert "fp4_gemm_backend" not in words(world)
    everything = world.of(checkpoints.modelopt(exclude=("*lm_head",)))
    assert words(everything)["fp4_gemm_backend"] == "flashinfer_cutedsl"
    assert words(everything.on("b200x4", sm=120))["fp4_gemm_backend"] == "flashinfer_cutlass"
    assert words(everything.on("h200x8"))["fp4_gemm_backend"] == "marlin"
    assert "fp4_gemm_backend" not in words(everything.by("vllm"))


def test_weight_only_checkpoints_run_on_marlin_even_on_blackwell(world: Any, checkpoints: Any) -> None:
    plan = world.of(checkpoints.modelopt("W4A16_NVFP4"))
    assert words(plan)["moe_backend"] == "marlin"
    assert words(plan.by("vllm"))["moe_backend"] == "marlin"
    assert "moe_backend" not in words(plan.of(checkpoints.compressed_tensors(activations=False)))


def test_options_are_firm_wishes(world: Any) -> None:
    stack = world.asking(moe_backend="flashinfer_cutlass", fp4_gemm_backend="flashinfer_cudnn").resolve()
    assert stack.quantization.moe_backend.value == "flashinfer_cutlass"
    assert stack.quantization.fp4_gemm_backend.value == "flashinfer_cudnn"
    assert not stack.quantization.moe_backend.default


@pytest.mark.parametrize("algo", ["FP8", None])
def test_a_checkpoint_without_nvfp4_is_refused_and_named(world: Any, checkpoints: Any, algo: str | None) -> None:
    model = checkpoints.modelopt(algo) if algo else checkpoints.plain()
    with pytest.raises(PlanRefusedError, match="no NVFP4 weights") as error:
        world.of(model).resolve()
    assert ("routed experts fp8" if algo else "not quantized: routed experts bf16") in str(error.value)
    assert "take quant-nvfp4 out" in error.value.fix


@pytest.mark.parametrize(
    ("exclude", "scope"),
    [
        (("*shared_experts*", "*self_attn*", "*layers.0.mlp*", "*lm_head"), "routed-experts"),
        (("*self_attn*", "*layers.0.mlp*", "*lm_head"), "all-experts"),
        (("*lm_head",), "linear"),
    ],
)
def test_scope_is_checked(world: Any, checkpoints: Any, exclude: tuple[str, ...], scope: str) -> None:
    plan = world.of(checkpoints.modelopt(exclude=exclude))
    for asked in ("any", "routed-experts", "all-experts", "linear"):
        if asked in ("any", scope):
            plan.asking(scope=asked).resolve()
            continue
        with pytest.raises(PlanRefusedError, match=f"scope of quant-nvfp4 is {asked} .* NVFP4 in {scope}"):
            plan.asking(scope=asked).resolve()


def test_an_unknown_option_names_the_nearest(world: Any) -> None:
    with pytest.raises(InputError, match="moe_backend"):
        world.asking(moe_backends="marlin").resolve()


def test_on_a_cpu_the_plugin_leaves_the_refusal_to_its_rule(world: Any, checkpoints: Any) -> None:
    cpu = world.by("vllm", "0.32.0", device="cpu").on("cpu")
    assert "moe_backend" not in words(cpu)
    assert words(cpu.of(checkpoints.plain()))["checkpoint_format"] == "none"
