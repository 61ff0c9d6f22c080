"""The kernels. Each program takes BLOCKS consecutive blocks of 16, row after row, and writes 8 bytes and a scale for
each; a matrix needs no more alignment than whole blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from optistack_quant_nvfp4.triton_kernels.blocks import pack_blocks
from optistack_quant_nvfp4.triton_kernels.unpack import bfloat16_pair, e2m1_value, in_columns, unit_of_code
from optistack_quant_nvfp4.triton_kernels.words import pack_words


@triton.jit
def _store(values, where, mask, divisor, packed_ptr, scales_ptr, bad_ptr, METHOD: tl.constexpr, BLOCKS: tl.constexpr):
    packed, scale, bad = pack_blocks(values, divisor, METHOD, BLOCKS)
    at = where[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(packed_ptr + at, packed, mask=mask[:, None])
    tl.store(scales_ptr + where, scale, mask=mask)
    tl.store(bad_ptr, 1, mask=bad)


@triton.jit
def _widened(values):
    """float32 of ``values``; int16 are the bits of bfloat16, which is so the same on every device, denormals included
    (Triton's interpreter loses those, and rounds down to bfloat16)."""
    if values.dtype == tl.int16:
        return (values.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return values.to(tl.float32)


@triton.jit
def quantize_kernel(
    weight_ptr, global_scale_ptr, packed_ptr, scales_ptr, bad_ptr, total, METHOD: tl.constexpr, BLOCKS: tl.constexpr
):
    """``weight``: floats, contiguous, bfloat16 as int16; ``total``: its count of blocks."""
    where = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    mask = where < total
    at = where[:, None] * 16 + tl.arange(0, 16)[None, :]
    values = _widened(tl.load(weight_ptr + at, mask=mask[:, None], other=0))
    divisor = tl.div_rn(1.0, tl.load(global_scale_ptr))
    _store(values, where, mask, divisor, packed_ptr, scales_ptr, bad_ptr, METHOD, BLOCKS)


@triton.jit
def quantize_words_kernel(
    words_ptr,
    global_scale_ptr,
    packed_ptr,
    scales_ptr,
    unsettled_ptr,
    total,
    STEPS: tl.constexpr,
    BLOCKS: tl.constexpr,
    PTX: tl.constexpr,
):
    """Of bfloat16 with the plain amax. ``words``: int32 of two values; ``packed``: int64, a block each; ``unsettled``
    becomes 1 if ``quantize_kernel`` has to do it.

    A program takes STEPS times BLOCKS blocks; with 32 of BLOCKS for each warp a thread has all of one."""
    first = tl.program_id(0).to(tl.int64) * (STEPS * BLOCKS)
    lane = tl.arange(0, BLOCKS)
    words, others = _load_words(words_ptr, first, lane, total)
    global_scale = tl.load(global_scale_ptr)
    divisor = tl.div_rn(1.0, global_scale)
    for step in tl.static_range(STEPS):
        mask = lane < total - first
        now, now_others = words, others
        if step + 1 < STEPS:  # the next are on their way while these are computed
            words, others = _load_words(words_ptr, first + BLOCKS, lane, total)
        codes, scale, unsettled = pack_words(now, now_others, global_scale, divisor, BLOCKS, PTX)
        tl.store(packed_ptr + first + lane, codes, mask=mask)
        tl.store(scales_ptr + first + lane, scale, mask=mask)
        tl.store(unsettled_ptr + lane * 0, 1, mask=unsettled & mask)
        first += BLOCKS


@triton.jit
def _load_words(words_ptr, first, lane, total):
    """The first and the last four words of blocks ``first + lane``, [lanes, 4]."""
    at = words_ptr + first * 8 + lane[:, None] * 8 + tl.arange(0, 4)[None, :]
    mask = (lane < total - first)[:, None]
    return tl.load(at, mask=mask, other=0), tl.load(at + 4, mask=mask, other=0)


@triton.jit
def quantize_fp8_kernel(
    weight_ptr,
    source_scale_ptr,
    global_scale_ptr,
    packed_ptr,
    scales_ptr,
    bad_ptr,
    total,
    row_blocks,
    scale_rows,
    scale_blocks,
    row_stride,
    METHOD: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """``weight``: float8_e4m3fn; ``row_blocks``: blocks of 16 in a row.

    A source scale holds for ``scale_rows`` rows and ``scale_blocks`` blocks of 16; the next rows' are ``row_stride``
    further on."""
    where = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    mask = where < total
    at = where[:, None] * 16 + tl.arange(0, 16)[None, :]
    values = tl.load(weight_ptr + at, mask=mask[:, None], other=0.0).to(tl.float32)
    scale_at = where // row_blocks // scale_rows * row_stride + where % row_blocks // scale_blocks
    values = values * _widened(tl.load(source_scale_ptr + scale_at, mask=mask, other=0))[:, None]
    divisor = tl.div_rn(1.0, tl.load(global_scale_ptr))
    _store(values, where, mask, divisor, packed_ptr, scales_ptr, bad_ptr, METHOD, BLOCKS)


@triton.jit
def quantize_int4_kernel(
    words_ptr,
    source_scale_ptr,
    global_scale_ptr,
    packed_ptr,
    scales_ptr,
    bad_ptr,
    total,
    GROUP_BLOCKS: tl.constexpr,
    METHOD: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """``words``: int32, eight values each; a source scale holds for ``GROUP_BLOCKS`` blocks of 16."""
    where = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    mask = where < total
    at = where[:, None] * 2 + tl.arange(0, 2)[None, :]
    words = tl.load(words_ptr + at, mask=mask[:, None], other=0)
    nibbles = (words[:, :, None] >> (tl.arange(0, 8) * 4)[None, None, :]) & 0xF
    values = (tl.reshape(nibbles, (BLOCKS, 16)) - 8).to(tl.float32)
    source = _widened(tl.load(source_scale_ptr + where // GROUP_BLOCKS, mask=mask, other=0))
    divisor = tl.div_rn(1.0, tl.load(global_scale_ptr))
    _store(values * source[:, None], where, mask, divisor, packed_ptr, scales_ptr, bad_ptr, METHOD, BLOCKS)


@triton.jit
def dequantize_kernel(
    words_ptr, scales_ptr, global_scale_ptr, weight_ptr, total, WORDS: tl.constexpr, PTX: tl.constexpr
):
    """The reverse, rounded once to the type of ``weight``. ``words``: int32 of eight values, ``total`` of them.

    ``weight`` is float32 or float16, or int32 of two bfloat16: so they are the same on every device (Triton's
    interpreter rounds down to bfloat16). A thread with one word stores 16 bytes of bfloat16 next to its neighbour's."""
    first = tl.program_id(0).to(tl.int64) * WORDS
    lane = tl.arange(0, WORDS)
    mask = lane < total - first
    word = tl.load(words_ptr + first + lane, mask=mask, other=0)
    scale = tl.load(scales_ptr + first // 2 + lane // 2, mask=mask, other=0).to(tl.int32)
    unit = unit_of_code(scale, tl.load(global_scale_ptr))
    v0, v1 = e2m1_value(word, 0) * unit, e2m1_value(word, 1) * unit
    v2, v3 = e2m1_value(word, 2) * unit, e2m1_value(word, 3) * unit
    v4, v5 = e2m1_value(word, 4) * unit, e2m1_value(word, 5) * unit
    v6, v7 = e2m1_value(word, 6) * unit, e2m1_value(word, 7) * unit
    column = tl.arange(0, 4)[None, :]
    if weight_ptr.dtype.element_ty == tl.int32:
        pairs = in_columns(
            bfloat16_pair(v0, v1, PTX),
            bfloat16_pair(v2, v3, PTX),
            bfloat16_pair(v4, v5, PTX),
            bfloat16_pair(v6, v7, PTX),
        )
        tl.store(weight_ptr + first * 4 + lane[:, None] * 4 + column, pairs, mask=mask[:, None])
    else:
        at = weight_ptr + first * 8 + lane[:, None] * 8 + column
        dtype: tl.constexpr = weight_ptr.dtype.element_ty
        tl.store(at, in_columns(v0, v1, v2, v3).to(dtype), mask=mask[:, None])
        tl.store(at + 4, in_columns(v4, v5, v6, v7).to(dtype), mask=mask[:, None])
