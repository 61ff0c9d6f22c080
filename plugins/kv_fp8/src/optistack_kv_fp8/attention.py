"""Which attention kernels read FP8 KV, by engine, compute capability and kind of attention.

The lists are the engines' own where they have one: ``supported_kv_cache_dtypes`` and ``supports_compute_capability`` of
vLLM 0.26 to 0.33 (v1/attention/backends), the resolution checks and backends of SGLang 0.5.17 to 0.5.23.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.settings import UNSET, Value, constrain
from optistack_kv_fp8.scales import UNIT

if TYPE_CHECKING:
    from optistack.facts.model import ModelFacts

E4M3 = "fp8_e4m3"
E5M2 = "fp8_e5m2"
DATACENTER_BLACKWELL = (100, 103)

SGLANG_E4M3_ONLY = ("trtllm_mla", "cutedsl_mla", "tokenspeed_mla")
SGLANG_MLA_CONVERTING = ("fa3", "fa4", "flashinfer")
"""SGLang's MLA backends that turn a layer's whole FP8 pool into BF16 before they read it (``get_key_buffer().to``)."""

SGLANG_SCALES_FILE = {
    "fa3": "fa3 attention does not start",
    "triton": "triton attention does not start",
    "fa4": "fa4 attention divides K and V by them and does not multiply them back",
    "flashinfer": "flashinfer attention divides K and V by them and does not multiply them back",
}
"""What SGLang's attention backends for K and V make of a file of scales; ``trtllm_mha`` reads it."""


def attention_backends(engine: str, sm: int, model: ModelFacts, dtype: str, scales: str) -> Value[str]:
    """The attention backends that read KV of ``dtype``; unset where there is no list to go by.

    A sparse-attention model has kernels of its own, which are not in these lists.
    """
    if sm == 0 or is_sparse(model):
        return UNSET
    mla = model.attention.kind == "mla"
    if engine == "vllm":
        words = _vllm_mla(sm, dtype, scales) if mla else _vllm(sm, dtype)
        reference = "vllm v1/attention/backends supported_kv_cache_dtypes"
    elif engine == "sglang" and mla:
        words = _sglang_mla(sm, dtype)
        reference = "sglang arg_groups/overrides.py _mla_kv_cache_dtype_checks; layers/attention"
    else:
        return UNSET
    if not words:
        return UNSET  # the adapter's rule refuses it and says why
    kind = "MLA kernels" if mla else "attention kernels"
    if engine == "sglang" and dtype == E5M2:
        why = "SGLang's own MLA kernels on SM100 do not read fp8_e5m2, and flashinfer converts the pool each step"
        return Value(value="triton", default=True, one_of=words, why=why, reference=reference)
    return constrain(one_of=words, why=f"the {kind} that read {dtype} KV on SM{sm}", reference=reference)


def is_sparse(model: ModelFacts) -> bool:
    """Whether a sparse-attention indexer (DeepSeek 3.2 and its kin) decides which KV is read."""
    text = model.config.get("text_config")
    return "index_topk" in model.config or (isinstance(text, dict) and "index_topk" in text)


def _vllm_mla(sm: int, dtype: str, scales: str) -> tuple[str, ...]:
    if dtype == E5M2:
        return ()
    if sm in DATACENTER_BLACKWELL:
        # CUTLASS_MLA raises at the first token when a scale is not 1.
        cutlass = ("CUTLASS_MLA",) if scales == UNIT else ()
        return ("FLASHINFER_MLA", "TOKENSPEED_MLA", *cutlass, "TRITON_MLA")
    return ("FLASHMLA", "TRITON_MLA") if sm // 10 == 9 else ("TRITON_MLA",)


def _vllm(sm: int, dtype: str) -> tuple[str, ...]:
    # FlashAttention reads FP8 with its version 3 on Hopper and version 4 on SM100 only (fa_utils.py).
    flash = ("FLASH_ATTN",) if dtype == E4M3 and (sm // 10 == 9 or sm in DATACENTER_BLACKWELL) else ()
    return (*flash, "FLASHINFER", "TRITON_ATTN")


def _sglang_mla(sm: int, dtype: str) -> tuple[str, ...]:
    if dtype == E5M2:
        return ("flashinfer", "triton")
    if sm in DATACENTER_BLACKWELL:
        return (*SGLANG_E4M3_ONLY, "flashmla", "flashinfer", "fa4", "triton")
    return ("fa3", "flashmla", "flashinfer", "triton") if sm // 10 == 9 else ("flashinfer", "triton")
