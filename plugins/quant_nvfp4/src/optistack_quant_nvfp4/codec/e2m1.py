"""E2M1: four bits a value, two values a byte.

A code is sign (bit 3), exponent (bits 2, 1; bias 1) and mantissa (bit 0): OCP Microscaling Formats (MX) 1.0, table 2.
"""

from __future__ import annotations

from torch import Tensor, float32, int32, tensor, uint8

MAX = 6.0
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Adding 2**22 leaves a float32 with a last place of 0.5, so the sum is rounded to it, ties to even.
_HALVES = 4194304.0


def magnitude_codes(magnitudes: Tensor) -> Tensor:
    """The nearest codes, ties to even, of float32 ``magnitudes`` in [0, 6]: int32 of the same shape, 0 to 7."""
    # Under 1 the codes are the count of halves (0, 0.5, 1).
    subnormal = (magnitudes + _HALVES).view(int32) & 3
    # From 1 on they are exponent and top mantissa bit of the float32 itself, rounded to that bit.
    bits = magnitudes.view(int32)
    normal = ((bits + 0x1FFFFF + ((bits >> 22) & 1)) >> 22) - ((127 << 1) - 2)
    return subnormal.where(magnitudes < 1.0, normal)


def magnitudes_of(codes: Tensor) -> Tensor:
    """float32 magnitudes of integer ``codes`` 0 to 7, of the same shape."""
    return tensor(_MAGNITUDES, dtype=float32, device=codes.device)[codes]


def pack(codes: Tensor) -> Tensor:
    """uint8 [..., cols / 2] of integer ``codes`` [..., cols], 0 to 15; the even column is the low nibble."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).to(uint8)


def unpack(values: Tensor) -> Tensor:
    """float32 [rows, 2 * bytes] of uint8 ``values`` [rows, bytes]."""
    signed = tensor([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], dtype=float32, device=values.device)
    pairs = signed.new_empty((*values.shape, 2))
    pairs[..., 0] = signed[(values & 0xF).to(int32)]
    pairs[..., 1] = signed[(values >> 4).to(int32)]
    return pairs.flatten(-2)
