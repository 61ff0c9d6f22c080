"""Weight formats: the word for each, and how many bytes it takes.

A format packs values of ``bits`` bits and adds ``scale_bytes`` for every ``group`` values. NVFP4 is 4-bit E2M1 with one
E4M3 scale for 16 values, so 9 bytes hold 16 values; the single FP32 scale of a tensor is too small to count.
"""

from __future__ import annotations

from typing import NamedTuple

from optistack.errors import InputError, nearest


class Format(NamedTuple):
    """A weight format. ``group`` 0 means that its scales are per tensor or per channel and not worth counting."""

    word: str
    bits: int
    group: int = 0
    scale_bytes: int = 0

    def bytes_of(self, parameters: int) -> int:
        """Bytes that hold ``parameters`` values and their scales."""
        scales = parameters // self.group * self.scale_bytes if self.group else 0
        return (parameters * self.bits + 7) // 8 + scales


FORMATS: dict[str, Format] = {
    known.word: known
    for known in (
        Format("fp32", 32),
        Format("bf16", 16),
        Format("fp16", 16),
        Format("fp8", 8),
        Format("mxfp8", 8, group=32, scale_bytes=1),
        Format("int8", 8),
        # 32 values to a 16-bit scale is what Kimi's own INT4 release has; a checkpoint's metadata overrides it.
        Format("int4", 4, group=32, scale_bytes=2),
        Format("nvfp4", 4, group=16, scale_bytes=1),
        Format("mxfp4", 4, group=32, scale_bytes=1),
    )
}

_CONFIG_DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8_e4m3fn": "fp8",
}


def format_named(word: str) -> Format:
    """The format called ``word`` (``nvfp4``, ``fp8``, ``bf16``, ...). InputError if there is none."""
    try:
        return FORMATS[word]
    except KeyError:
        raise InputError(f"{word!r} is not a weight precision.", fix=nearest(word, FORMATS)) from None


def format_of_dtype(dtype: str) -> Format:
    """The format of a ``dtype`` as config.json spells it (``bfloat16``, ``float16``, ...)."""
    word = _CONFIG_DTYPES.get(dtype.removeprefix("torch."))
    if word is None:
        raise InputError(f"{dtype!r} is not a dtype that weights come in.", fix=nearest(dtype, _CONFIG_DTYPES))
    return FORMATS[word]


def bytes_freed(parameters: int, before: str, after: str) -> int:
    """Bytes freed when ``parameters`` weights go from precision ``before`` to ``after`` (negative if they grow)."""
    return format_named(before).bytes_of(parameters) - format_named(after).bytes_of(parameters)
