"""vLLM's attention kernels for MLA: which KV dtypes, page sizes and GPUs they take.

Read in v1/attention/backends/mla of 0.26.0 and 0.33.0, where they are alike.
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
    "FLASHMLA": MlaKernel(_WIDE + _FP8, 64, (9, 10)),
    "TRITON_MLA": MlaKernel(_WIDE + _FP8, 16, ()),
}

TOKENSPEED_QUERY_TOKENS = 8
"""Its decode workspace is for this many query tokens of a request (tokenspeed_mla.py ``_TOKENSPEED_MAX_Q_LEN``)."""
