"""The kernels as functions of tensors, with the codec's signatures and errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

import torch
import triton
from torch import Tensor

from optistack.errors import InputError
from optistack_quant_nvfp4.codec import Method, NonFiniteError, Packed, ShapeError
from optistack_quant_nvfp4.codec.nvfp4 import BLOCK
from optistack_quant_nvfp4.triton_kernels.kernels import (
    dequantize_kernel,
    quantize_fp8_kernel,
    quantize_int4_kernel,
    quantize_kernel,
    quantize_words_kernel,
)

METHODS: dict[str, int] = {"amax": 0, "mse": 1, "four-over-six": 2}
BLOCKS_PER_PROGRAM = 256
WARPS = 4
# The reference rounds after each operation.
LAUNCH: dict[str, Any] = {"num_warps": WARPS, "enable_fp_fusion": False}


@dataclass(frozen=True, slots=True)
class Shape:
    """How the kernel for bfloat16 divides its work: a program has ``warps``, and goes ``steps`` times over a block for
    each of their threads."""

    warps: int
    steps: int


SHAPE = Shape(warps=4, steps=2)


def quantize(weight: Tensor, global_scale: Tensor, method: Method = "amax", name: str = "") -> Packed:
    """``codec.quantize`` of float32, bfloat16 or float16 ``weight`` [rows, cols].

    Raises NonFiniteError and ShapeError; looks at the result for the former, and so waits for the kernel.
    """
    packed, flag = start(weight, global_scale, method, name)
    if int(flag) and _in_words(weight, method):
        packed, flag = _divide(weight, packed, torch.zeros_like(flag), method)
    _refuse(flag, name)
    return packed


def start(
    weight: Tensor,
    global_scale: Tensor,
    method: Method = "amax",
    name: str = "",
    shape: Shape = SHAPE,
    flag: Tensor | None = None,
) -> tuple[Packed, Tensor]:
    """``quantize`` without waiting: what is being packed, and a flag that will be 1 if a value is not finite, or a
    code was too close to call and ``quantize`` goes over it again. ``flag``: an int32 0 on the device, which is set
    instead of a new one; several matrices may share it where any of them is enough to know."""
    packed, flag = _outputs(weight.shape, global_scale, method, name, weight.device, flag)
    if not _in_words(weight, method):
        return _divide(weight, packed, flag, method)
    total, blocks = packed.block_scales.numel(), 32 * shape.warps
    quantize_words_kernel[(triton.cdiv(total, blocks * shape.steps),)](
        _words(weight),
        packed.global_scale,
        packed.values.view(torch.int64),
        packed.block_scales.view(torch.uint8),
        flag,
        total,
        STEPS=shape.steps,
        BLOCKS=blocks,
        PTX=_ptx(weight),
        num_warps=shape.warps,
        enable_fp_fusion=False,
    )
    return packed, flag


def _in_words(weight: Tensor, method: str) -> bool:
    return weight.dtype == torch.bfloat16 and method == "amax"


def _divide(weight: Tensor, packed: Packed, flag: Tensor, method: Method) -> tuple[Packed, Tensor]:
    """Fill ``packed`` by the kernel that divides, whose ``flag`` says that a value is not finite."""
    quantize_kernel[_grid(packed)](
        _bits(weight),
        packed.global_scale,
        packed.values,
        packed.block_scales.view(torch.uint8),
        flag,
        packed.block_scales.numel(),
        METHOD=METHODS[method],
        BLOCKS=BLOCKS_PER_PROGRAM,
        **LAUNCH,
    )
    return packed, flag


def quantize_fp8(
    weight: Tensor,
    scale: Tensor,
    global_scale: Tensor,
    method: Method = "amax",
    block: tuple[int, int] | None = None,
    name: str = "",
) -> Packed:
    """``codec.quantize`` of what ``codec.fp8_to_float`` gives, in one pass. Source blocks are of whole 16 columns.

    Raises as ``quantize`` does."""
    packed, bad = start_fp8(weight, scale, global_scale, method, block, name)
    _refuse(bad, name)
    return packed


def start_fp8(
    weight: Tensor,
    scale: Tensor,
    global_scale: Tensor,
    method: Method = "amax",
    block: tuple[int, int] | None = None,
    name: str = "",
) -> tuple[Packed, Tensor]:
    """``quantize_fp8`` without waiting, as ``start``."""
    packed, bad = _outputs(weight.shape, global_scale, method, name, weight.device)
    rows, cols = weight.shape
    scale_rows, scale_blocks, row_stride = rows, cols // BLOCK, 1
    if block is not None:
        grid = (math.ceil(rows / block[0]), math.ceil(cols / block[1]))
        if tuple(scale.shape) != grid or block[1] % BLOCK:
            raise ShapeError(name, weight.shape, f"scales of {list(grid)} for blocks of {block[0]}x{block[1]}")
        scale_rows, scale_blocks, row_stride = block[0], block[1] // BLOCK, grid[1]
    elif scale.numel() == rows and scale.shape[0] == rows:
        scale_rows = 1
    elif scale.numel() != 1:
        raise ShapeError(name, weight.shape, f"one scale or one for each row, and has {list(scale.shape)}")
    quantize_fp8_kernel[_grid(packed)](
        weight.contiguous(),
        _bits(scale),
        packed.global_scale,
        packed.values,
        packed.block_scales.view(torch.uint8),
        bad,
        packed.block_scales.numel(),
        cols // BLOCK,
        scale_rows,
        scale_blocks,
        row_stride,
        METHOD=METHODS[method],
        BLOCKS=BLOCKS_PER_PROGRAM,
        **LAUNCH,
    )
    return packed, bad


def quantize_int4(
    packed_int32: Tensor,
    scale: Tensor,
    global_scale: Tensor,
    method: Method = "amax",
    group: int = 32,
    name: str = "",
) -> Packed:
    """``codec.quantize`` of what ``codec.int4_to_float`` gives, in one pass. ``group`` is a multiple of 16.

    Raises as ``quantize`` does."""
    packed, bad = start_int4(packed_int32, scale, global_scale, method, group, name)
    _refuse(bad, name)
    return packed


def start_int4(
    packed_int32: Tensor,
    scale: Tensor,
    global_scale: Tensor,
    method: Method = "amax",
    group: int = 32,
    name: str = "",
) -> tuple[Packed, Tensor]:
    """``quantize_int4`` without waiting, as ``start``."""
    if packed_int32.dim() != 2 or packed_int32.dtype != torch.int32:
        raise ShapeError(name, packed_int32.shape, f"two dimensions of int32, and is {packed_int32.dtype}")
    rows, cols = packed_int32.shape[0], packed_int32.shape[1] * 8
    if group % BLOCK or cols % group or tuple(scale.shape) != (rows, cols // group):
        raise ShapeError(name, (rows, cols), f"a scale for each {group} columns, and has {list(scale.shape)}")
    packed, bad = _outputs((rows, cols), global_scale, method, name, packed_int32.device)
    quantize_int4_kernel[_grid(packed)](
        packed_int32.contiguous(),
        _bits(scale),
        packed.global_scale,
        packed.values,
        packed.block_scales.view(torch.uint8),
        bad,
        packed.block_scales.numel(),
        GROUP_BLOCKS=group // BLOCK,
        METHOD=METHODS[method],
        BLOCKS=BLOCKS_PER_PROGRAM,
        **LAUNCH,
    )
    return packed, bad


def dequantize(packed: Packed, dtype: torch.dtype = torch.float32) -> Tensor:
    """``codec.dequantize``: [rows, cols] of ``dtype``, one of float32, bfloat16 and float16."""
    rows, half = packed.values.shape
    weight = torch.empty((rows, half * 2), dtype=dtype, device=packed.values.device)
    words = _words(packed.values)
    dequantize_kernel[(triton.cdiv(words.numel(), 32 * WARPS),)](
        words,
        packed.block_scales.contiguous().view(torch.uint8),
        packed.global_scale,
        weight.view(torch.int32) if dtype == torch.bfloat16 else weight,
        words.numel(),
        WORDS=32 * WARPS,
        PTX=_ptx(words),
        **LAUNCH,
    )
    return weight


def _bits(tensor: Tensor) -> Tensor:
    """Contiguous, and bfloat16 as int16, as the kernels take it."""
    tensor = tensor.contiguous()
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def _words(tensor: Tensor) -> Tensor:
    """Contiguous, as int32 of the same bytes; a copy where it does not begin at a whole word."""
    tensor = tensor.contiguous()
    return (tensor.clone() if tensor.data_ptr() % 4 else tensor).view(torch.int32)


def _ptx(tensor: Tensor) -> bool:
    """Whether a kernel for ``tensor`` may use instructions of NVIDIA's."""
    return tensor.is_cuda and torch.version.cuda is not None


def _grid(packed: Packed) -> tuple[int]:
    return (triton.cdiv(packed.block_scales.numel(), BLOCKS_PER_PROGRAM),)


def _outputs(
    shape: torch.Size | tuple[int, ...],
    global_scale: Tensor,
    method: str,
    name: str,
    device: torch.device,
    flag: Tensor | None = None,
) -> tuple[Packed, Tensor]:
    if method not in METHODS:
        raise InputError(f"NVFP4 has no method {method!r}.", fix=f"Use {', '.join(get_args(Method))}.")
    if len(shape) != 2 or math.prod(shape) == 0 or shape[1] % BLOCK:
        raise ShapeError(name, shape, f"two dimensions and a multiple of {BLOCK} columns")
    values = torch.empty((shape[0], shape[1] // 2), dtype=torch.uint8, device=device)
    scales = torch.empty((shape[0], shape[1] // BLOCK), dtype=torch.float8_e4m3fn, device=device)
    scale = global_scale.detach().to(device=device, dtype=torch.float32).reshape(())
    if flag is None:
        flag = torch.zeros((), dtype=torch.int32, device=device)
    return Packed(values, scales, scale), flag


def _refuse(bad: Tensor, name: str) -> None:
    if int(bad):
        raise NonFiniteError(name)
