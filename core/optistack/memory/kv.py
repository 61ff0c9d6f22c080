"""Bytes of KV that one token takes on one GPU.

MLA caches one latent of ``kv_lora_rank`` values and ``qk_rope_head_dim`` rotary values in each layer, for all heads
together, so tensor parallelism does not divide it: every rank holds all of it (arXiv 2405.04434, section 2.1). GQA and
MHA cache K and V of the KV heads, which the ranks divide; a rank has at least one whole head.
"""

from __future__ import annotations

from optistack.errors import InputError, nearest
from optistack.facts.model import ModelFacts

# Bytes of values and scales that hold `group` values.
_NVFP4_GROUP, _NVFP4_BYTES = 16, 9
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
KV_DTYPES = (*_BYTES, "nvfp4")


def row_bytes(values: int, dtype: str) -> int:
    """Bytes of ``values`` cached values in ``dtype``. NVFP4 counts its block scales: 9 bytes for 16 values."""
    if dtype == "nvfp4":
        return -(-values // _NVFP4_GROUP) * _NVFP4_BYTES
    if dtype not in _BYTES:
        raise InputError(f"{dtype!r} is not a dtype of KV that can be planned with.", fix=nearest(dtype, KV_DTYPES))
    return values * _BYTES[dtype]


def bytes_per_token(model: ModelFacts, dtype: str, tensor_parallel: int = 1, attention_data_parallel: int = 1) -> int:
    """Bytes that one KV token of ``model`` takes on one GPU.

    ``tensor_parallel`` is the number of GPUs of the replica; ``attention_data_parallel`` of it are ranks with requests
    of their own, so that the heads are divided by ``tensor_parallel / attention_data_parallel`` only.
    """
    attention = model.attention
    if attention.kind == "mla":
        return row_bytes(attention.kv_lora_rank + attention.qk_rope_head_dim, dtype) * model.layers
    heads = max(1, -(-attention.kv_heads // attention_ranks(tensor_parallel, attention_data_parallel)))
    return 2 * heads * row_bytes(attention.head_dim, dtype) * model.layers


def attention_ranks(tensor_parallel: int, attention_data_parallel: int) -> int:
    """GPUs that divide the heads of one attention group. InputError if the two do not divide."""
    if tensor_parallel < 1 or attention_data_parallel < 1 or tensor_parallel % attention_data_parallel:
        raise InputError(
            f"Attention data parallel {attention_data_parallel} does not divide tensor parallel {tensor_parallel}.",
            fix="Choose a divisor.",
        )
    return tensor_parallel // attention_data_parallel
