"""What is done to blocks of 16 values that are in registers: [blocks, 16] float32 magnitudes to codes and back.

Every division is the correctly rounded one and no multiplication is fused with an addition (the launch says so): the
bytes are the reference's on any device. Scales are held as the integer code of E4M3, rounded here by integer
arithmetic, which GPUs older than FP8 have too.
"""

from __future__ import annotations

import triton
import triton.language as tl

AMAX = tl.constexpr(0)
MSE = tl.constexpr(1)
FOUR_OVER_SIX = tl.constexpr(2)

_INFINITY = tl.constexpr(0x7F800000)
# One of each pair is first in ``codec.nvfp4.MSE_STEPS``: -1, 1, -2, 2, -3, 3, -4, 4, 5, 6.
_PAIRS = tl.constexpr(4)


@triton.jit
def e4m3_code(value):
    """The nearest E4M3 code, ties to even, of ``value`` in [0, 448]."""
    # 2**14 has a last place of 2**-9, the step of E4M3 under 2**-6.
    subnormal = (value + 16384.0).to(tl.int32, bitcast=True) & 0xF
    bits = value.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
    return tl.where(value < 0.015625, subnormal, normal)


@triton.jit
def e4m3_value(code):
    """The float32 of an E4M3 code that is neither negative nor NaN."""
    normal = ((code + 960) << 20).to(tl.float32, bitcast=True)
    return tl.where(code < 8, code.to(tl.float32) * 0.001953125, normal)


@triton.jit
def e2m1_code(magnitude):
    """The nearest E2M1 code, ties to even, of ``magnitude`` in [0, 6]."""
    subnormal = (magnitude + 4194304.0).to(tl.int32, bitcast=True) & 3
    bits = magnitude.to(tl.int32, bitcast=True)
    normal = ((bits + 0x1FFFFF + ((bits >> 22) & 1)) >> 22) - 252
    return tl.where(magnitude < 1.0, subnormal, normal)


@triton.jit
def e2m1_value(code):
    """The float32 magnitude of an E2M1 code without its sign."""
    normal = ((code + 252) << 22).to(tl.float32, bitcast=True)
    return tl.where(code < 2, code.to(tl.float32) * 0.5, normal)


@triton.jit
def block_scale(wanted, divisor):
    """The E4M3 code of the block scale for ``wanted``, which is in the weight's own units."""
    code = e4m3_code(tl.minimum(wanted * divisor, 448.0))
    return tl.where(code == 0, 32, code)  # 32 is 0.125


@triton.jit
def scaled(magnitudes, scale, divisor):
    """``magnitudes`` over what a one of E2M1 stands for under the block scale of code ``scale``."""
    return tl.div_rn(magnitudes, tl.div_rn(e4m3_value(scale), divisor)[:, None])


@triton.jit
def codes_of(magnitudes, scale, divisor):
    return e2m1_code(tl.minimum(scaled(magnitudes, scale, divisor), 6.0))


@triton.jit
def sum_of_sixteen(terms, BLOCKS: tl.constexpr):
    """The sum over the last axis, neighbours first, as the reference adds."""
    even, odd = tl.split(tl.reshape(terms, (BLOCKS, 8, 2)))
    even, odd = tl.split(tl.reshape(even + odd, (BLOCKS, 4, 2)))
    even, odd = tl.split(tl.reshape(even + odd, (BLOCKS, 2, 2)))
    even, odd = tl.split(tl.reshape(even + odd, (BLOCKS, 1, 2)))
    return tl.reshape(even + odd, (BLOCKS,))


@triton.jit
def error_of(magnitudes, target, unit, scale, divisor, BLOCKS: tl.constexpr):
    """The squared error of each block under ``scale``, in units of the scale ``unit``."""
    ratio = tl.div_rn(e4m3_value(scale), e4m3_value(unit))
    off = target - e2m1_value(codes_of(magnitudes, scale, divisor)) * ratio[:, None]
    return sum_of_sixteen(off * off, BLOCKS)


@triton.jit
def better_of(best, least, candidate, magnitudes, target, unit, divisor, BLOCKS: tl.constexpr):
    error = error_of(magnitudes, target, unit, candidate, divisor, BLOCKS)
    return tl.where(error < least, candidate, best), tl.minimum(error, least)


@triton.jit
def pack_blocks(values, divisor, METHOD: tl.constexpr, BLOCKS: tl.constexpr):
    """[BLOCKS, 16] float32 to bytes [BLOCKS, 8], scale codes [BLOCKS], and whether any value is not finite.

    ``divisor`` is one over the global scale.
    """
    magnitudes = tl.abs(values)
    # Of floats that are not negative the bits are in the same order, and NaN is past infinity.
    amax_bits = tl.max(magnitudes.to(tl.int32, bitcast=True), axis=1)
    amax = amax_bits.to(tl.float32, bitcast=True)
    scale = block_scale(tl.div_rn(amax, 6.0), divisor)
    if METHOD != AMAX:
        unit = scale
        target = scaled(magnitudes, unit, divisor)
        least = error_of(magnitudes, target, unit, unit, divisor, BLOCKS)
        if METHOD == FOUR_OVER_SIX:
            four = block_scale(amax * 0.25, divisor)
            scale, least = better_of(scale, least, four, magnitudes, target, unit, divisor, BLOCKS)
        else:
            for step in tl.static_range(1, _PAIRS + 1):
                down = tl.maximum(unit - step, 1)
                scale, least = better_of(scale, least, down, magnitudes, target, unit, divisor, BLOCKS)
                up = tl.minimum(unit + step, 126)
                scale, least = better_of(scale, least, up, magnitudes, target, unit, divisor, BLOCKS)
            for step in tl.static_range(_PAIRS + 1, _PAIRS + 3):
                up = tl.minimum(unit + step, 126)
                scale, least = better_of(scale, least, up, magnitudes, target, unit, divisor, BLOCKS)
    codes = codes_of(magnitudes, scale, divisor) | tl.where(values < 0.0, 8, 0)
    low, high = tl.split(tl.reshape(codes, (BLOCKS, 8, 2)))
    return (low | (high << 4)).to(tl.uint8), scale.to(tl.uint8), tl.max(amax_bits, axis=0) >= _INFINITY
