"""Quantizing and dequantizing where the tensors are: PyTorch on a processor, the kernels on a GPU, the same bytes."""

from __future__ import annotations

import torch

from optistack_quant_nvfp4 import codec
from optistack_quant_nvfp4.codec import Method, Packed
from optistack_quant_nvfp4.convert.layer import NVFP4_BLOCK
from optistack_quant_nvfp4.convert.values import Stored


def has_kernels(device: torch.device) -> bool:
    """Whether the Triton kernels work on tensors of ``device``."""
    return bool(device.type == "cuda")


def quantize(rows: Stored, global_scale: torch.Tensor, method: Method) -> Packed:
    """``rows`` packed on their device; by kernels, FP8 and INT4 in one pass. Raises as the codec does."""
    layer = rows.layer
    if not has_kernels(rows.weight.device):
        return codec.quantize(rows.values(), global_scale, method, layer.name)
    from optistack_quant_nvfp4 import triton_kernels

    width = layer.block[1]
    if rows.scale is None or width % NVFP4_BLOCK:
        return triton_kernels.quantize(rows.values(), global_scale, method, layer.name)
    if layer.form == "int4":
        return triton_kernels.quantize_int4(rows.weight, rows.scale, global_scale, method, width, layer.name)
    return triton_kernels.quantize_fp8(rows.weight, rows.scale, global_scale, method, layer.block, layer.name)


def dequantize(packed: Packed) -> torch.Tensor:
    """float32 [rows, cols], on the device of ``packed``."""
    if has_kernels(packed.values.device):
        from optistack_quant_nvfp4 import triton_kernels

        return triton_kernels.dequantize(packed, torch.float32)
    return codec.dequantize(packed, torch.float32)
