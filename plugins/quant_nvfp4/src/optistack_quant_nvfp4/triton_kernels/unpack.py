"""Words of eight packed values, the first in the lowest bits, to floats, and to words of two bfloat16."""

from __future__ import annotations

import triton
import triton.language as tl

# Of float32 whose exponents begin where those of the small format do: what they have to be multiplied by.
_E2M1, _E4M3 = tl.constexpr(2.0**126), tl.constexpr(2.0**120)
_SIGN_AND_CODE = tl.constexpr(-0x7E400000)  # 0x81C00000


@triton.jit
def e2m1_value(word, PLACE: tl.constexpr):
    """The value in four bits of ``word``: moved to a float32's sign, lowest exponents and first mantissa bit."""
    return (((word << (28 - 4 * PLACE)) >> 6) & _SIGN_AND_CODE).to(tl.float32, bitcast=True) * _E2M1


@triton.jit
def unit_of_code(code, global_scale):
    """What a one stands for under the E4M3 scale ``code``, an int32 that is neither negative nor NaN."""
    return (code << 20).to(tl.float32, bitcast=True) * _E4M3 * global_scale


@triton.jit
def bfloat16_bits(value):
    """Rounded, ties to even, to the upper half of a float32's bits."""
    bits = value.to(tl.int32, bitcast=True)
    return bits + 0x7FFF + ((bits >> 16) & 1)


@triton.jit
def bfloat16_pair(first, second, PTX: tl.constexpr):
    """A word of two values as bfloat16."""
    if PTX:
        return tl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [second, first], tl.int32, True, 1)
    return ((bfloat16_bits(first) >> 16) & 0xFFFF) | (bfloat16_bits(second) & -0x10000)


@triton.jit
def in_columns(first, second, third, fourth):
    """[rows, 4] of four [rows]."""
    both = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(both, (first.shape[0], 4))
