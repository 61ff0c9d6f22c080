"""What the adapter reads back about KV: dtype, scales and how much the pool holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from optistack.verify.receipt import Observed

Serve = Callable[..., dict[str, Observed]]

FP8 = "cpu-0.32-fp8-dflash"
BF16 = "cpu-0.32-bfloat16"


def test_pool_tokens_are_slots_even_where_vllm_counts_whole_requests(observe: Serve) -> None:
    """182 pages of 128; vLLM says 22,750, since a request of 1,500 tokens takes 12 whole pages."""
    seen = observe(BF16)["budget.kv_tokens"]
    assert seen.value == 182 * 128
    assert 'kv_cache_size_tokens="22750"' in seen.proof


def test_a_pool_of_several_groups_is_what_vllm_says_it_is(observe: Serve) -> None:
    """Windowed layers need blocks of their own, and then blocks times page size is more than what fits."""
    seen = observe(BF16, edit=lambda text: text.replace('kv_cache_size_tokens="22750"', 'kv_cache_size_tokens="11000"'))
    assert seen["budget.kv_tokens"].value == 11_000


def test_pools_of_several_engines_are_added_up(observe: Serve) -> None:
    """Each engine has a line, whose blocks are those of all engines and whose tokens are its own."""

    def twice(text: str, blocks: int) -> str:
        text = text.replace(f'num_gpu_blocks="{blocks}"', f'num_gpu_blocks="{2 * blocks}"')
        line = next(line for line in text.splitlines() if line.startswith("vllm:cache_config_info{"))
        return text + line.replace('engine="0"', 'engine="1"') + "\n"

    assert observe(FP8, edit=lambda text: twice(text, 321))["budget.kv_tokens"].value == 2 * 41_088
    assert observe(BF16, edit=lambda text: twice(text, 182))["budget.kv_tokens"].value == 2 * 182 * 128
    windowed = observe(BF16, edit=lambda text: twice(text.replace('"22750"', '"11000"'), 182))
    assert windowed["budget.kv_tokens"].value == 2 * 11_000


@pytest.mark.parametrize(("dev", "log"), [(True, False), (False, True)])
def test_auto_kv_is_the_models_dtype_only_without_quantization(observe: Serve, dev: bool, log: bool) -> None:
    def auto(text: str) -> str:
        return text.replace('cache_dtype="bfloat16"', 'cache_dtype="auto"')

    seen = observe(BF16, dev=dev, log=log, edit=auto)["kv.dtype"]
    assert seen.value == "bfloat16"
    assert "without quantization" in seen.proof


def test_auto_kv_proves_nothing_on_a_quantized_checkpoint_or_without_evidence(observe: Serve) -> None:
    def auto(text: str) -> str:
        return text.replace('cache_dtype="bfloat16"', 'cache_dtype="auto"')

    quantized = {"model_config": {"dtype": "torch.bfloat16", "quantization": "compressed-tensors"}}
    for seen in (
        observe(BF16, edit=auto, config=quantized, log=False),
        observe(BF16, edit=auto, dev=False, log=False),
    ):
        assert seen["kv.dtype"].value is None
        assert "does not say what it became" in seen["kv.dtype"].proof


def test_a_draft_without_a_dtype_of_its_own_has_the_targets(observe: Serve) -> None:
    config = {"speculative_config": {"method": "dflash", "num_speculative_tokens": 7, "kv_cache_dtype": None}}
    assert observe(FP8, config=config)["kv.draft_dtype"].value == "fp8_e4m3"


@pytest.mark.parametrize(
    ("log", "scales"),
    [
        ("quantization=modelopt_fp4", "checkpoint"),
        ("quantization=modelopt_fp4\nWARNING Using KV cache scaling factor 1.0 for fp8_e4m3. If this is", "unit"),
        (
            "quantization=compressed-tensors\nWARNING Found k_scale in the checkpoint (e.g. layers.0.attn.k_scale), "
            "but not found the expected name in the model (e.g. layers.0.attn.attn.k_scale). k_scale is not loaded.",
            "unit",
        ),
        ("quantization=None", "unit"),
        ("", None),
    ],
)
def test_where_fp8_scales_come_from(log: str, scales: str | None, observe: Serve) -> None:
    engine = "Initializing a V1 LLM engine (v0.33.0) with config: dtype=torch.bfloat16, "
    assert observe(FP8, dev=False, log=engine + log if log else False)["kv.scales"].value == scales
    assert "kv.scales" not in observe(BF16)


def test_computed_scales_are_told_apart(observe: Serve) -> None:
    seen = observe(
        FP8, edit=lambda text: text.replace('cache_dtype="fp8', 'calculate_kv_scales="True",cache_dtype="fp8')
    )
    assert seen["kv.scales"].value == "computed"
