"""Quantizing and dequantizing where the tensors are: PyTorch on a processor, the kernels on a GPU, the same bytes."""

from __future__ import annotations

import torch

from optistack_quant_nvfp4 import codec
from optistack_quant_nvfp4.codec import Method, Packed


def quantize(weight: torch.Tensor, global_scale: torch.Tensor, method: Method, name: str) -> Packed:
    """``weight``, floats [rows, cols], packed on its device. Raises as the codec does."""
    if weight.device.type == "cuda":
        from optistack_quant_nvfp4 import triton_kernels

        return triton_kernels.quantize(weight, global_scale, method, name)
    return codec.quantize(weight, global_scale, method, name)


def dequantize(packed: Packed) -> torch.Tensor:
    """float32 [rows, cols], on the device of ``packed``."""
    if packed.values.device.type == "cuda":
        from optistack_quant_nvfp4 import triton_kernels

        return triton_kernels.dequantize(packed, torch.float32)
    return codec.dequantize(packed, torch.float32)
