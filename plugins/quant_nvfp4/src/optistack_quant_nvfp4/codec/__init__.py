"""NVFP4 in PyTorch: the arithmetic that defines what the converter writes. Needs torch (the extra ``convert``)."""

from __future__ import annotations

from optistack_quant_nvfp4.codec.errors import NonFiniteError, ShapeError
from optistack_quant_nvfp4.codec.nvfp4 import (
    NORMALISATION,
    Method,
    Packed,
    dequantize,
    global_scale_of,
    quantize,
)
from optistack_quant_nvfp4.codec.sources import fp8_to_float, int4_to_float

__all__ = [
    "NORMALISATION",
    "Method",
    "NonFiniteError",
    "Packed",
    "ShapeError",
    "dequantize",
    "fp8_to_float",
    "global_scale_of",
    "int4_to_float",
    "quantize",
]
