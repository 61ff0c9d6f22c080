"""What only the log proves."""

from __future__ import annotations

from typing import Any

import pytest


def test_the_log_is_believed_over_a_word(engine: Any) -> None:
    seen = engine.observe(engine.but(kv_cache_dtype="bf16"))["kv.dtype"]
    assert seen.value == "fp8_e4m3"
    assert "KV Cache is allocated. dtype: torch.float8_e4m3fn" in seen.proof


def test_auto_proves_nothing_without_a_log(engine: Any) -> None:
    seen = engine.observe(log=None)
    for path in ("kv.dtype", "kv.draft_dtype", "quantization.experts", "quantization.checkpoint_format"):
        assert seen[path].value is None
        assert "log" in seen[path].proof


def test_a_bf16_checkpoint_is_told_from_a_quantized_one(engine: Any) -> None:
    log = engine.log.replace("quant=modelopt, quant_algo=NVFP4, ", "")
    seen = engine.values(log=log)
    assert seen["quantization.checkpoint_format"] == "none"
    assert seen["quantization.experts"] is None


def test_compressed_tensors_names_its_format_and_not_its_precision(engine: Any) -> None:
    log = engine.log.replace("quant=modelopt, quant_algo=NVFP4, ", "quant=compressed-tensors, ")
    seen = engine.observe(log=log)
    assert seen["quantization.checkpoint_format"].value == "compressed-tensors"
    assert seen["quantization.experts"].value is None
    assert "gives no quant_algo" in seen["quantization.experts"].proof


LEFT_OUT = (
    "Found .{0}_scale in the checkpoint (e.g. model.layers.0.self_attn.{0}_proj.{0}_scale), but not found the expected "
    "name in the model (e.g. model.layers.0.self_attn.attn.{0}_scale). .{0}_scale is not loaded."
)
LOADED = "Load weight end. elapsed=0.29 s, type=LlamaForCausalLM, quant=compressed-tensors, avail mem=57.18 GB"
POOL = "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 1864128, K size: 10.00 GB, V size: 10.00 GB"
UNSAID = "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0."
"""SGLang logs it whenever it was given no file, whatever the checkpoint brought."""
REFUSED = (
    # As 0.5.23 logged on a CPU of a file for two ranks on one.
    "An error occurred while reading 'scales.json'.",
    "Defaulting to KV cache scaling factors = 1.0 for all layers in TP rank 0 as an error occurred during loading.",
    "Loaded KV cache scaling factors from scales.json",
)


@pytest.mark.parametrize(
    ("lines", "scales"),
    [
        # As 0.5.17 logged on an H200 of a calibrated SmolLM2 in compressed-tensors' form.
        ((LEFT_OUT.format("k"), LEFT_OUT.format("v"), UNSAID, LOADED, POOL), "unit"),
        (("Ignoring compressed-tensors kv_cache_scheme {...}: only static", LOADED, POOL), "unit"),
        ((LOADED.replace("quant=compressed-tensors, ", ""), UNSAID, POOL), "unit"),
        (("Loaded KV cache scaling factors from scales.json", LOADED, POOL), "file"),
        ((*REFUSED, LOADED, POOL), "unit"),
        (("Loaded KV cache scaling factors from scales.json", LOADED, *REFUSED, POOL), "file"),  # a draft's is refused
        ((LOADED, UNSAID, POOL), None),
        ((LOADED, POOL, LEFT_OUT.format("k")), None),  # a draft's
    ],
)
def test_where_fp8_scales_come_from(engine: Any, lines: tuple[str, ...], scales: str | None) -> None:
    log = "".join(f"[2026-11-30 21:39:39] {line}\n" for line in lines)
    seen = engine.observe(engine.but(kv_cache_dtype="fp8_e4m3"), log=log)["kv.scales"]
    assert seen.value == scales
    assert "log: " in seen.proof


def test_the_file_that_scales_came_from_is_said(engine: Any) -> None:
    log = f"[2026-11-30 21:39:39] Loaded KV cache scaling factors from scales.json\n[2026-11-30 21:39:39] {POOL}\n"
    assert engine.values(engine.but(kv_cache_dtype="fp8_e4m3"), log=log)["kv.scales_file"] == "scales.json"
    assert "kv.scales_file" not in engine.values()
    refused = "".join(f"[2026-11-30 21:39:39] {line}\n" for line in (*REFUSED, LOADED, POOL))
    assert "kv.scales_file" not in engine.values(engine.but(kv_cache_dtype="fp8_e4m3"), log=refused)


def test_bf16_kv_has_no_scales(engine: Any) -> None:
    assert "kv.scales" not in engine.observe(engine.but(kv_cache_dtype="bf16"), log="")


def test_the_kernels_that_the_draft_really_got(engine: Any) -> None:
    log = engine.log.replace("attention_backend=flashinfer", "attention_backend=triton")
    assert engine.observe(log=log)["speculation.draft_attention_backend"].value == "triton"


def test_a_log_of_one_rank_has_no_rank_in_its_lines(engine: Any) -> None:
    log = (
        "INFO supervisor: [2026-11-29 12:00:06] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 32768, "
        "K size: 0.70 GB, V size: 0.70 GB\n"
    )
    assert engine.observe(log=log)["kv.dtype"].value == "bfloat16"


def test_two_pools_of_one_model_are_not_a_draft(engine: Any) -> None:
    """A model with sliding windows has two pools; a draft's comes after the target's are closed."""
    log = (
        "[2026-11-29 12:00:06 TP0] Full KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 4, KV size: 1 GB\n"
        "[2026-11-29 12:00:06 TP0] SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4, KV size: 1.00 GB\n"
        "[2026-11-29 12:00:06 TP0] Memory pool end. avail mem=1.00 GB\n"
    )
    seen = engine.observe(engine.but(speculative_algorithm=None, speculative_draft_model_path=None), log=log)
    assert seen["kv.dtype"].value == "fp8_e4m3"
    assert "kv.draft_dtype" not in seen
