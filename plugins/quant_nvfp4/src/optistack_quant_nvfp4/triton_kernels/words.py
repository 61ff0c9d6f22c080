"""Blocks of bfloat16 with the plain amax scale, in few instructions: a thread has one block, as eight 32-bit words.

No value is divided by its unit ``s``. With ``r``, a float32 next to 1 / s, and ``t = (1 - s * r) * r``, the sum
``m * r + m * t`` is within 3 * 2**-48 of m / s, relatively, before its one rounding. The code of m / s, rounded to
float32, depends on no more than whether m / s is below, on or above the points between two E2M1 values, 0.25, 0.75 and
so on: on which side it is of the float32 midpoints next to such a point. Of such a midpoint, of ``s`` and of ``m`` let
N, S and M be the significands as integers of 25, 24 and 24 bits. N is 2**22 * k + 1 or - 1, and N * S, less than 2**49,
is compared with M * 2**23 or more. Modulo 2**22 the one is S or -S, the other 0: they differ by the distance of S from
a multiple of 2**22 at least, and the error is less than 6. A distance above 16 settles the code, then; so does none,
where they differ by 2**22. The few other scales are reported as unsettled, and ``blocks`` divides.
"""

from __future__ import annotations

import triton
import triton.language as tl

_INFINITY = tl.constexpr(0x7F800000)
_MAGNITUDES = tl.constexpr(0x7FFF7FFF)
_SIGNS = tl.constexpr(-0x7FFF8000)  # 0x80008000
_HIGH = tl.constexpr(-0x10000)  # 0xFFFF0000
# 1/6 as the sum of two float32: so multiplied and rounded once, a float32 is divided by 6, correctly rounded.
_SIXTH = tl.constexpr(0.16666667163372040)
_SIXTH_REST = tl.constexpr(-4.967053879312289e-09)
# Outside of these units some of the arithmetic could be with denormals or infinities.
_LEAST, _MOST = tl.constexpr(2.0**-80), tl.constexpr(2.0**80)


@triton.jit
def magnitude_code(magnitude, half, rest):
    """The E2M1 code, in the low byte of an integer that is a multiple of 65536 but for it.

    ``half + rest`` is half of one over what a one stands for. Over the magnitudes the code is the least of three lines,
    each rounded to an integer: 2 q to a q of 2, q + 2 to 4, q / 2 + 4 to 6, where it ends."""
    h = tl.fma(magnitude, half, magnitude * rest)
    # From 2**23 on the last place is 1: these are 2**23 plus an integer, ties to even.
    first = tl.fma(h, 4.0, 8388608.0).to(tl.uint32, bitcast=True)
    second = tl.fma(h, 2.0, 8388610.0).to(tl.uint32, bitcast=True)
    third = (8388615.0 - tl.minimum(tl.maximum(3.0 - h, 0.0), 1.0)).to(tl.uint32, bitcast=True)
    return tl.minimum(tl.minimum(first, second), third)


@triton.jit
def low_value(magnitudes):
    return (magnitudes << 16).to(tl.float32, bitcast=True)


@triton.jit
def high_value(magnitudes):
    return (magnitudes & _HIGH).to(tl.float32, bitcast=True)


@triton.jit
def signs_of(word, magnitudes):
    """The sign bits of ``word``, of zeros none."""
    return ((magnitudes + _MAGNITUDES) & word & _SIGNS).to(tl.uint32)


@triton.jit
def four_codes(word, next_word, half, rest):
    """The codes of four values, the first in the lowest bits; above bit 15 there is anything."""
    first, second = word & _MAGNITUDES, next_word & _MAGNITUDES
    codes = magnitude_code(high_value(second), half, rest) * 16 + magnitude_code(low_value(second), half, rest)
    codes = codes * 16 + magnitude_code(high_value(first), half, rest)
    codes = codes * 16 + magnitude_code(low_value(first), half, rest)
    # Sign bits 15 and 31, the first word's moved to 7 and 23. A product's upper half has them at 3, 7, 11 and 15.
    signs = (signs_of(word, first) >> 8) + signs_of(next_word, second)
    return codes + tl.umulhi(signs, 0x10010000)


@triton.jit
def eight_codes(words, half, rest, BLOCKS: tl.constexpr):
    """[BLOCKS, 4] words to [BLOCKS] of eight codes."""
    first, second, third, fourth = columns(words, BLOCKS)
    low = four_codes(first, second, half, rest)
    high = four_codes(third, fourth, half, rest)
    return (low & 0xFFFF) | (high << 16)


@triton.jit
def columns(words, BLOCKS: tl.constexpr):
    """The four columns of [BLOCKS, 4]."""
    even, odd = tl.split(tl.reshape(words, (BLOCKS, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def amax_bits(words, others):
    """The bits of the largest magnitude of each row as a float32."""
    words, others = words & _MAGNITUDES, others & _MAGNITUDES
    low = tl.maximum(tl.max(words << 16, axis=1), tl.max(others << 16, axis=1))
    high = tl.maximum(tl.max(words, axis=1), tl.max(others, axis=1))
    return tl.maximum(high & _HIGH, low)


@triton.jit
def inverse_of(value, PTX: tl.constexpr):
    """One over ``value`` within two last places."""
    if PTX:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [value], tl.float32, True, 1)
    return 1.0 / value


@triton.jit
def halves_of(unit, inverse):
    """Half of one over ``unit`` as the sum of two float32. ``inverse`` is it within two last places."""
    inverse = tl.fma(tl.fma(-unit, inverse, 1.0), inverse, inverse)
    half = inverse * 0.5
    return half, tl.fma(-unit, inverse, 1.0) * half


@triton.jit
def unit_of(scale, global_scale, divisor):
    """``scale / divisor``, correctly rounded for each of E4M3's eight significands and any ``global_scale``, of which
    ``divisor`` is one over."""
    unit = scale * global_scale
    return tl.fma(tl.fma(-unit, divisor, scale), global_scale, unit)


@triton.jit
def is_settled(unit):
    """Whether the codes of magnitudes over ``unit`` are sure to be right."""
    off = (unit.to(tl.int32, bitcast=True) + 16) & 0x3FFFFF
    return ((off > 32) | (off == 16)) & (unit >= _LEAST) & (unit <= _MOST)


@triton.jit
def rounded_to_e4m3(value):
    """The nearest number of E4M3, ties to even, to ``value`` in [0, 448]."""
    # 2**20 times the power of two in it, or of 2**-6, has the last place of E4M3 there.
    power = (tl.maximum(value, 0.015625).to(tl.int32, bitcast=True) & _INFINITY).to(tl.float32, bitcast=True)
    return tl.fma(power, -1048576.0, tl.fma(power, 1048576.0, value))


@triton.jit
def pack_words(words, others, global_scale, divisor, BLOCKS: tl.constexpr, PTX: tl.constexpr):
    """A block's first and last four words, [BLOCKS, 4] int32, to codes [BLOCKS] int64 and scale codes [BLOCKS].

    And, [BLOCKS], whether the codes are not settled or a value is not finite. ``divisor`` is one over the global scale.
    """
    bits = amax_bits(words, others)
    amax = bits.to(tl.float32, bitcast=True)
    scale = rounded_to_e4m3(tl.minimum(tl.fma(amax, _SIXTH, amax * _SIXTH_REST) * divisor, 448.0))
    scale = tl.where(scale == 0.0, 0.125, scale)
    unit = unit_of(scale, global_scale, divisor)  # what a one stands for
    half, rest = halves_of(unit, inverse_of(unit, PTX))
    low = eight_codes(words, half, rest, BLOCKS).to(tl.uint64)
    high = eight_codes(others, half, rest, BLOCKS).to(tl.uint64)
    unsettled = (bits >= _INFINITY) | (is_settled(unit) == 0)
    # So scaled E4M3's exponents are the lowest of float32, denormals included.
    code = (scale * 2.0**-120).to(tl.int32, bitcast=True) >> 20
    return (low | (high << 32)).to(tl.int64, bitcast=True), code.to(tl.uint8), unsettled
