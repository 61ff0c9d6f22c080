"""Why the kernel for bfloat16 may multiply where the reference divides."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels on the CPU need TRITON_INTERPRET=1", allow_module_level=True)

import triton
import triton.language as tl

from optistack_quant_nvfp4 import codec, triton_kernels
from optistack_quant_nvfp4.codec import e2m1
from optistack_quant_nvfp4.triton_kernels.words import (
    halves_of,
    is_settled,
    magnitude_code,
    rounded_to_e4m3,
    unit_of,
)

POINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
significands = st.integers(2**23, 2**24 - 1)


@triton.jit
def codes_kernel(magnitudes_ptr, units_ptr, inverses_ptr, codes_ptr, settled_ptr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    unit = tl.load(units_ptr + at)
    half, rest = halves_of(unit, tl.load(inverses_ptr + at))
    tl.store(codes_ptr + at, magnitude_code(tl.load(magnitudes_ptr + at), half, rest) & 0xFFFF)
    tl.store(settled_ptr + at, is_settled(unit))


@triton.jit
def scales_kernel(wanted_ptr, global_scales_ptr, scales_ptr, units_ptr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    scale = rounded_to_e4m3(tl.load(wanted_ptr + at))
    global_scale = tl.load(global_scales_ptr + at)
    tl.store(scales_ptr + at, scale)
    tl.store(units_ptr + at, unit_of(scale, global_scale, tl.div_rn(1.0, global_scale)))


def floats(bits: torch.Tensor) -> torch.Tensor:
    return bits.to(torch.int32).view(torch.float32)


def near(values: torch.Tensor, steps: int) -> torch.Tensor:
    """[values, 2 * steps + 1]: each and its neighbours as float32."""
    return floats(values.view(torch.int32).unsqueeze(-1) + torch.arange(-steps, steps + 1))


def codes_of(magnitudes: torch.Tensor, units: torch.Tensor, off: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's codes, and whether it takes them for right, with an inverse that is ``off`` last places wrong."""
    inverses = floats((1.0 / units).view(torch.int32) + off)
    codes, settled = torch.empty(len(units), dtype=torch.int32), torch.empty(len(units), dtype=torch.int32)
    codes_kernel[(1,)](magnitudes, units, inverses, codes, settled, SIZE=len(units))
    return codes, settled.bool()


@given(s=significands, m=significands, point=st.sampled_from(POINTS), above=st.booleans())
def test_a_settled_quotient_is_far_from_where_its_code_could_change(s: int, m: int, point: float, above: bool) -> None:
    off = (s + 16) % 2**22
    if off <= 32 and off != 16:
        return
    significand = point
    while significand < 2**23:
        significand *= 2
    midpoint = 2 * int(significand) + 1 if above else 2 * int(significand) - 1
    if midpoint < 2**24:  # under a power of two the last place is half
        midpoint = 4 * int(significand) - 1
    assert 2**24 <= midpoint < 2**25
    product = midpoint * s
    for shift in range(23, 27):
        closest = min(max(round(Fraction(product, 2**shift)), 2**23), 2**24 - 1)
        assert abs(closest * 2**shift - product) > 16
        assert abs(m * 2**shift - product) > 16
    assert 3 * Fraction(product, 2**48) < 6


@pytest.mark.parametrize("off", [-2, 0, 2])
def test_every_settled_code_is_that_of_the_quotient(off: int) -> None:
    """Magnitudes at each point between two values, next to it, and as bfloat16; units of every awkward significand."""
    draw = torch.Generator().manual_seed(3)
    special = torch.tensor([0, 1, 15, 16, 17, 18, 33, 2**21, 2**22 - 17, 2**22 - 16, 2**22 - 1, 2**22, 2**22 + 17])
    some = torch.cat([special, 2**23 - 1 - special, torch.randint(0, 2**23, (2022,), generator=draw)])
    units = floats(some + (torch.randint(40, 210, some.shape, generator=draw) << 23))
    exact = (units.unsqueeze(1).double() * torch.tensor(POINTS, dtype=torch.float64)).flatten()
    close = near(exact.float(), 2)
    coarse = (exact.unsqueeze(1) * torch.tensor([1 - 2.0**-8, 1.0, 1 + 2.0**-8])).bfloat16().float()
    magnitudes = torch.cat([close, coarse], 1)
    repeated = units.repeat_interleave(len(POINTS)).unsqueeze(1).expand_as(magnitudes)
    settled_count = unsettled_count = 0
    for m, s in zip(magnitudes.flatten().split(1 << 13), repeated.flatten().split(1 << 13), strict=True):
        pad = (1 << 13) - len(m)
        m, s = torch.nn.functional.pad(m, (0, pad)), torch.nn.functional.pad(s, (0, pad), value=1.0)
        found, settled = codes_of(m.contiguous(), s.contiguous(), off)
        same = found == e2m1.magnitude_codes((m / s).clamp(max=6.0))
        assert bool(same[settled].all())
        settled_count += int(settled.sum())
        unsettled_count += int((~settled).sum())
    assert 0 < unsettled_count < settled_count / 10


def test_scales_are_rounded_and_divided_as_the_reference_does() -> None:
    codes = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middle = (codes[1:] + codes[:-1]) / 2
    wanted = torch.cat([near(codes[1:], 2).flatten(), near(middle, 2).flatten(), torch.rand(1 << 15) * 448])
    wanted = torch.nn.functional.pad(wanted[wanted <= 448.0], (0, 1 << 16))[: 1 << 16].contiguous()
    draw = torch.Generator().manual_seed(5)
    scale = floats(torch.randint(40 << 23, 200 << 23, wanted.shape, generator=draw))
    rounded, units = torch.empty_like(wanted), torch.empty_like(wanted)
    scales_kernel[(1,)](wanted, scale, rounded, units, SIZE=len(wanted))
    assert torch.equal(rounded, wanted.to(torch.float8_e4m3fn).float())
    assert torch.equal(units, rounded / (1.0 / scale))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
@settings(max_examples=30, deadline=None)
@given(
    bits=st.lists(st.integers(0, 0xFFFF), min_size=16, max_size=16),
    scale=st.floats(2.0**-120, 2.0**120, width=32, allow_subnormal=False),
)
def test_any_sixteen_values_and_global_scale_give_the_references_bytes(bits: list[int], scale: float) -> None:
    weight = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).reshape(1, 16)
    global_scale = torch.tensor(scale)
    outcomes: list[Any] = []
    for quantize in (triton_kernels.quantize, codec.quantize):
        try:
            packed = quantize(weight, global_scale)
            outcomes.append((packed.values.tolist(), packed.block_scales.view(torch.uint8).tolist()))
        except codec.NonFiniteError:
            outcomes.append("not finite")
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("significand", [2**23 + 1, 3 * 2**22 - 1, 2**24 - 1])
def test_a_scale_too_close_to_call_is_divided(significand: int) -> None:
    """One over the global scale is such that blocks of the largest value's scale have that significand."""
    weight = (torch.randn(8, 64, generator=torch.Generator().manual_seed(1)) * 0.02).to(torch.bfloat16)
    scale = torch.tensor(significand * 2.0**-37)
    _, unsettled = triton_kernels.launch.start(weight, scale)
    packed, reference = triton_kernels.quantize(weight, scale), codec.quantize(weight, scale)
    assert int(unsettled) == 1
    assert torch.equal(packed.values, reference.values)
    assert torch.equal(packed.block_scales.view(torch.uint8), reference.block_scales.view(torch.uint8))


def test_words_may_start_anywhere() -> None:
    """A matrix that begins at an odd value of its storage is no view of whole words."""
    base = (torch.randn(1 + 32 * 4, generator=torch.Generator().manual_seed(2)) * 0.02).to(torch.bfloat16)
    weight = base[1:].view(4, 32)
    scale = codec.global_scale_of(weight)
    assert torch.equal(triton_kernels.quantize(weight, scale).values, codec.quantize(weight, scale).values)
