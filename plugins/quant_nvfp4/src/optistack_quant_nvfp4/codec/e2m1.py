"""E2M1: four bits a value, two values a byte.

A code is sign (bit 3), exponent (bits 2, 1; bias 1) and mantissa (bit 0): OCP Microscaling Formats (MX) 1.0, table 2.
Rounding is by sums that leave a float32 no finer last place, to nearest and ties to even as its own arithmetic is: few
operations, each of which goes over memory once. What is a byte is handled as one, so words are little-endian.
"""

from __future__ import annotations

from torch import Tensor, arange, float32, int16, int32, int64, minimum, mul, tensor, uint8

MAX = 6.0
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_ONES = 8388608.0  # 2**23, whose last place is 1
_HALVES = 4194304.0  # 2**22
_EXPONENT = 0x7F800000


def magnitude_codes(magnitudes: Tensor) -> Tensor:
    """The nearest codes, ties to even, of float32 ``magnitudes`` in [0, 6]: uint8 of the same shape, 0 to 7."""
    # Over the magnitudes the codes are the least of three lines, of which each step is one code: in halves up to 2, in
    # ones to 4, in twos to 6. The least of the rounded is the rounded least.
    codes = mul(magnitudes, 2.0).add_(_ONES)
    line = magnitudes + (_ONES + 2.0)
    minimum(codes, line, out=codes)
    mul(magnitudes, 0.5, out=line).add_(_ONES + 4.0)
    minimum(codes, line, out=codes)
    return codes.view(int32).to(uint8)


def rounded_(magnitudes: Tensor) -> Tensor:
    """float32 ``magnitudes`` in [0, 6] made the nearest E2M1 values, ties to even."""
    # The last place of 2**22 is 0.5, the step under 2; of 2**23 and 2**24 it is that from 2 and from 4 on.
    powers = magnitudes.clamp(min=1.0)
    powers.view(int32).bitwise_and_(_EXPONENT)
    powers.mul_(_HALVES)
    return magnitudes.add_(powers).sub_(powers)


def sign_codes(values: Tensor) -> Tensor:
    """uint8 of the same shape: 8 where float32 ``values`` are less than zero, else 0. Minus zero is none."""
    return ((values + 0.0).view(int32) >> 28).to(uint8).bitwise_and_(8)


def pack(codes: Tensor) -> Tensor:
    """uint8 [..., cols / 2] of uint8 ``codes`` [..., cols], 0 to 15; the even column is the low nibble."""
    pairs = codes.view(int16)
    return (pairs >> 4).bitwise_or_(pairs).to(uint8)


def unpack(values: Tensor) -> Tensor:
    """float32 [rows, 2 * bytes] of uint8 ``values`` [rows, bytes]."""
    return look_up_nibbles(values, tensor(_VALUES, dtype=float32, device=values.device))


def look_up_nibbles(values: Tensor, table: Tensor) -> Tensor:
    """float32 [rows, 2 * bytes]: what the 16 entries of ``table`` say of each nibble of uint8 ``values`` [rows, bytes],
    the low one first."""
    byte = arange(256, device=values.device)
    pairs = table.new_empty((256, 2))
    pairs[:, 0], pairs[:, 1] = table[byte & 0xF], table[byte >> 4]
    found = pairs.view(int64).flatten().index_select(0, values.flatten().to(int32))
    return found.view(float32).view(*values.shape[:-1], -1)
