"""What only the log proves."""

from __future__ import annotations

from typing import Any


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
