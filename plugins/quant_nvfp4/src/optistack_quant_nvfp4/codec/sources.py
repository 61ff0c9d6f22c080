"""What the quantized formats of checkpoints stand for, in float32: one rounding fewer than through BF16."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optistack_quant_nvfp4.codec.e2m1 import look_up_nibbles
from optistack_quant_nvfp4.codec.errors import ShapeError


def fp8_to_float(weight: Tensor, scale: Tensor, block: tuple[int, int] | None = None, name: str = "") -> Tensor:
    """float32 [rows, cols]: ``weight`` (float8 [rows, cols]) times ``scale``.

    ``scale`` has one element (per tensor), [rows] or [rows, 1] (per channel), or with ``block`` (128 by 128 in
    DeepSeek's checkpoints, where it is called ``weight_scale_inv``) one for each block, ragged ones included. Raises
    ShapeError.
    """
    if weight.dim() != 2:
        raise ShapeError(name, weight.shape, "two dimensions")
    rows, cols = weight.shape
    scale = scale.to(torch.float32)
    if block is not None:
        grid = (math.ceil(rows / block[0]), math.ceil(cols / block[1]))
        if tuple(scale.shape) != grid:
            raise ShapeError(name, weight.shape, f"scales of {list(grid)} for blocks of {block[0]}x{block[1]}")
        spread = scale.repeat_interleave(min(block[0], rows), 0)[:rows]
        if grid[1] > 1:
            spread = spread.repeat_interleave(block[1], 1)[:, :cols]
        return _floats(weight).mul_(spread)
    if scale.numel() == 1:
        return _floats(weight).mul_(scale.reshape(()))
    if scale.numel() == rows and scale.shape[0] == rows:
        return _floats(weight).mul_(scale.reshape(rows, 1))
    raise ShapeError(name, weight.shape, f"one scale or one for each row, and has {list(scale.shape)}")


def _floats(weight: Tensor) -> Tensor:
    """float32 of float8 ``weight``, by looking each byte up: on a processor half the time of a conversion."""
    table = torch.arange(256, dtype=torch.uint8, device=weight.device).view(weight.dtype).to(torch.float32)
    codes = weight.contiguous().view(torch.uint8).flatten().to(torch.int32)
    return table.index_select(0, codes).view(weight.shape)


def int4_to_float(
    packed_int32: Tensor, scale: Tensor, group: int = 32, shape: tuple[int, int] | None = None, name: str = ""
) -> Tensor:
    """float32 [rows, cols] of compressed-tensors' ``pack-quantized`` INT4, symmetric.

    ``packed_int32``: int32 [rows, cols / 8], the first column in the lowest nibble, each nibble 8 more than its value.
    ``scale``: [rows, cols / group]. ``shape`` is ``weight_shape`` of the checkpoint. Raises ShapeError.
    """
    if packed_int32.dim() != 2 or packed_int32.dtype != torch.int32:
        raise ShapeError(name, packed_int32.shape, f"two dimensions of int32, and is {packed_int32.dtype}")
    rows, cols = shape if shape is not None else (packed_int32.shape[0], packed_int32.shape[1] * 8)
    if tuple(packed_int32.shape) != (rows, math.ceil(cols / 8)):
        raise ShapeError(name, packed_int32.shape, f"[{rows}, {math.ceil(cols / 8)}] words for {rows}x{cols} values")
    if cols % group or tuple(scale.shape) != (rows, cols // group):
        raise ShapeError(name, (rows, cols), f"a scale for each {group} columns, and has {list(scale.shape)}")
    table = torch.arange(-8, 8, dtype=torch.float32, device=packed_int32.device)
    values = look_up_nibbles(packed_int32.contiguous().view(torch.uint8), table)[:, :cols].unflatten(1, (-1, group))
    return values.mul_(scale.to(torch.float32).unsqueeze(-1)).flatten(1)
