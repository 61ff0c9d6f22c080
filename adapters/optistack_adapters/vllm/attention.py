"""vLLM's attention kernels: which KV dtypes, page sizes and GPUs they take.

Read in v1/attention/backends of 0.26.0 and 0.33.0, where they are alike, and asked of 0.32.0 itself.
"""

from __future__ import annotations

from typing import NamedTuple

_WIDE = ("bfloat16", "float16")
_FP8 = ("fp8_e4m3",)


class MlaKernel(NamedTuple):
    """``page_multiple``: the page size must be a whole multiple. ``families``: compute capabilities, first digits
    (9 for Hopper, 10 for SM100 and SM103); empty means all."""

    kv_dtypes: tuple[str, ...]
    page_multiple: int
    families: tuple[int, ...]


MLA_KERNELS: dict[str, MlaKernel] = {
    "FLASHINFER_MLA": MlaKernel(_WIDE + _FP8, 32, (10,)),
    "TOKENSPEED_MLA": MlaKernel(_FP8, 32, (10,)),
    "CUTLASS_MLA": MlaKernel(_WIDE + _FP8, 128, (10,)),
    "FLASH_ATTN_MLA": MlaKernel(_WIDE, 16, (9,)),
    "FLASHMLA": MlaKernel(_WIDE + _FP8, 64, (9,)),
    "TRITON_MLA": MlaKernel(_WIDE + _FP8, 16, ()),
}

TOKENSPEED_QUERY_TOKENS = 8
"""Its decode workspace is for this many query tokens of a request (tokenspeed_mla.py ``_TOKENSPEED_MAX_Q_LEN``)."""

KERNELS: dict[str, tuple[str, ...]] = {
    "FLASH_ATTN": _WIDE + _FP8,
    "FLASHINFER": (*_WIDE, *_FP8, "fp8_e5m2", "nvfp4"),
    "TRITON_ATTN": (*_WIDE, *_FP8, "fp8_e5m2"),
    "FLEX_ATTENTION": _WIDE,
}
"""KV dtypes of the kernels for other attention than MLA. FLASH_ATTN's FP8 needs FlashAttention 3 on SM90 or 4 on SM100,
which vLLM brings along; ``nvfp4`` needs SM100."""

PAGE_MULTIPLE = 16
"""Pages of those kernels are whole multiples of this many tokens."""

PREFILL_KERNELS: dict[str, tuple[int, ...]] = {
    "FLASH_ATTN": (),
    "FLASHINFER": (10,),
    "TRTLLM_RAGGED": (10,),
    "TOKENSPEED_MLA": (10,),
}
"""Kernels for the prefill of MLA models, with the families of GPUs that they run on (empty: all)."""
