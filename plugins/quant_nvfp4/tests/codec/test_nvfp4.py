from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack_quant_nvfp4 import codec
from optistack_quant_nvfp4.codec import e2m1

METHODS = ("amax", "mse", "four-over-six")
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def error_of(weight: Any, packed: codec.Packed) -> float:
    """Relative to the weight's norm, in float64."""
    exact = weight.to(torch.float64)
    scales = packed.block_scales.to(torch.float64) * packed.global_scale.to(torch.float64)
    unit = codec.dequantize(codec.Packed(packed.values, torch.ones_like(packed.block_scales), torch.tensor(1.0)))
    back = (unit.to(torch.float64).unflatten(1, (-1, 16)) * scales.unsqueeze(-1)).flatten(1)
    return float((exact - back).norm() / exact.norm())


def test_codes_and_values_are_the_nearest_and_ties_go_to_even() -> None:
    points = (VALUES[1:] + VALUES[:-1]) / 2
    tied = torch.tensor([0, 2, 2, 4, 4, 6, 6])  # of the codes around each
    above, below = torch.nextafter(points, points * 2), torch.nextafter(points, points * 0)
    magnitudes = torch.cat([VALUES, points, above, below])
    codes = torch.cat([torch.arange(8), tied, torch.arange(1, 8), torch.arange(0, 7)])
    assert torch.equal(e2m1.magnitude_codes(magnitudes), codes.to(torch.uint8))
    assert torch.equal(e2m1.rounded_(magnitudes), VALUES[codes])
    dense = torch.linspace(0, 6, 100003)
    nearest = (dense.double().unsqueeze(1) - VALUES.double()).abs().argmin(1)
    assert torch.equal(e2m1.magnitude_codes(dense).long(), nearest)


def test_signs_are_of_what_is_less_than_zero() -> None:
    values = torch.tensor([[0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, -3e38, 3e38]])
    assert e2m1.sign_codes(values).tolist() == [[0, 0, 0, 8, 0, 8, 8, 0]]


def test_a_block_reads_back_its_own_values() -> None:
    weight = torch.cat([VALUES, -VALUES]).view(1, 16) * 0.5
    packed = codec.quantize(weight, codec.global_scale_of(weight.abs().max()))
    assert packed.values.tolist() == [[0x10, 0x32, 0x54, 0x76, 0x90, 0xBA, 0xDC, 0xFE]]
    assert packed.block_scales.float().tolist() == [[448.0]]
    assert torch.allclose(codec.dequantize(packed), weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_block_that_is_all_one_value_keeps_it(method: codec.Method) -> None:
    weight = torch.full((2, 32), -3.25)
    back = codec.dequantize(codec.quantize(weight, codec.global_scale_of(weight, method), method))
    assert torch.allclose(back, weight, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_comes_back_has_the_dtype_asked_for(dtype: Any) -> None:
    packed = codec.quantize(torch.ones(2, 16, dtype=dtype), torch.tensor(1.0))
    assert packed.block_scales.dtype == torch.float8_e4m3fn and packed.values.dtype == torch.uint8
    assert codec.dequantize(packed, dtype).dtype == dtype


def test_searching_errs_less_than_amax(weights: dict[str, Any]) -> None:
    for name in ("usual", "heavy tails", "outliers"):
        weight = weights[name]
        errors = {m: error_of(weight, codec.quantize(weight, codec.global_scale_of(weight, m), m)) for m in METHODS}
        assert max(errors["mse"], errors["four-over-six"]) < errors["amax"] < 0.12, (name, errors)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-6e4, 6e4, width=16), min_size=16, max_size=16), st.sampled_from(METHODS))
def test_no_value_is_further_off_than_half_a_step(block: list[float], method: codec.Method) -> None:
    weight = torch.tensor([block])
    packed = codec.quantize(weight, codec.global_scale_of(weight, method), method)
    unit = float(packed.block_scales.float() * packed.global_scale)
    off = (codec.dequantize(packed) - weight).abs()
    inside = weight.abs() <= 6 * unit
    # The widest step is from 4 to 6; past 6 the value is clipped, which for amax only rounding of the scale can do.
    assert bool((off[inside] <= unit * 1.00001).all())
    if method == "amax" and unit > 1e-3:
        assert float(weight.abs().max()) <= 6 * unit * (1 + 2**-4 + 1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_chunks_of_rows_do_not_show(method: codec.Method, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(50, 64)
    scale = codec.global_scale_of(weight, method)
    whole = codec.quantize(weight, scale, method)
    monkeypatch.setattr("optistack_quant_nvfp4.codec.nvfp4._CHUNK_ELEMENTS", 7 * 64)
    split = codec.quantize(weight, scale, method)
    assert torch.equal(whole.values, split.values)
    assert torch.equal(whole.block_scales.view(torch.uint8), split.block_scales.view(torch.uint8))


def test_the_global_scale_is_what_the_methods_say() -> None:
    assert float(codec.global_scale_of(torch.tensor(2688.0))) == 1.0
    assert float(codec.global_scale_of(torch.tensor([-1536.0, 3.0]), "four-over-six")) == 1.0
    assert float(codec.global_scale_of(torch.tensor(0.0))) == 1.0
    assert float(codec.global_scale_of(torch.tensor(1e-40))) == 1.0


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_name(poison: float) -> None:
    weight = torch.ones(4, 32)
    weight[2, 7] = weight[3, 1] = poison
    with pytest.raises(codec.NonFiniteError, match="Tensor model.layers.3.w holds values that are NaN or infinite"):
        codec.quantize(weight, torch.tensor(1.0), name="model.layers.3.w")
    with pytest.raises(codec.NonFiniteError):
        codec.global_scale_of(weight)


@pytest.mark.parametrize("shape", [(4, 24), (16,), (2, 2, 16), (0, 16)])
def test_a_shape_that_cannot_be_packed_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(codec.ShapeError, match="Tensor w of shape .* needs two dimensions and a multiple of 16"):
        codec.quantize(torch.ones(shape), torch.tensor(1.0), name="w")


def test_an_unknown_method_and_a_senseless_scale_are_refused() -> None:
    with pytest.raises(InputError, match="no method 'best'"):
        codec.quantize(torch.ones(1, 16), torch.tensor(1.0), "best")  # type: ignore[arg-type]  # the bad input itself
    with pytest.raises(InputError, match="global scale of w is 0"):
        codec.quantize(torch.ones(1, 16), torch.tensor(0.0), name="w")
