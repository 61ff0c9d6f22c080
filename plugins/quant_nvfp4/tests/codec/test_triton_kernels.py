"""The kernels give the reference's bytes: here in Triton's interpreter, on a GPU by benchmarks/nvfp4_kernels.py."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels on the CPU need TRITON_INTERPRET=1", allow_module_level=True)

from optistack_quant_nvfp4 import codec, triton_kernels

METHODS: tuple[codec.Method, ...] = ("amax", "mse", "four-over-six")
SOME = ("ragged", "float32", "heavy tails", "zero blocks", "some denormals", "huge")


def same(ours: codec.Packed, reference: codec.Packed) -> bool:
    scales = torch.equal(ours.block_scales.view(torch.uint8), reference.block_scales.view(torch.uint8))
    return scales and torch.equal(ours.values, reference.values)


def test_every_byte_of_amax_is_the_references(weights: dict[str, Any]) -> None:
    for name, weight in weights.items():
        scale = torch.tensor(1.0) if name == "scales between" else codec.global_scale_of(weight)
        assert same(triton_kernels.quantize(weight, scale), codec.quantize(weight, scale)), name


@pytest.mark.parametrize("method", ["mse", "four-over-six"])
def test_every_byte_of_a_search_is_the_references(weights: dict[str, Any], method: codec.Method) -> None:
    for name in SOME:
        scale = codec.global_scale_of(weights[name], method)
        ours = triton_kernels.quantize(weights[name], scale, method)
        assert same(ours, codec.quantize(weights[name], scale, method)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_value_reads_back_as_the_references(weights: dict[str, Any], dtype: torch.dtype) -> None:
    for name in ("ragged", "outliers", "zero blocks", "all zero"):
        packed = codec.quantize(weights[name], codec.global_scale_of(weights[name]))
        assert torch.equal(triton_kernels.dequantize(packed, dtype), codec.dequantize(packed, dtype)), name


def test_every_code_and_scale_reads_back_as_the_references() -> None:
    values = torch.arange(256, dtype=torch.uint8).repeat(127, 1)
    scales = torch.arange(127, dtype=torch.uint8).repeat_interleave(32).view(127, 32).view(torch.float8_e4m3fn)
    packed = codec.Packed(values, scales, torch.tensor(0.37))
    assert torch.equal(triton_kernels.dequantize(packed), codec.dequantize(packed))


@pytest.mark.parametrize("block", [None, (128, 128)])
@pytest.mark.parametrize("method", METHODS)
def test_fp8_in_one_pass_is_the_reference_in_two(block: tuple[int, int] | None, method: codec.Method) -> None:
    rows, cols = 131, 144
    weight = torch.randn(rows, cols).to(torch.float8_e4m3fn)
    for shape in [(2, 2)] if block else [(1,), (), (rows,), (rows, 1)]:
        scale = torch.rand(shape) + 0.01
        plain = codec.fp8_to_float(weight, scale, block)
        global_scale = codec.global_scale_of(plain, method)
        ours = triton_kernels.quantize_fp8(weight, scale, global_scale, method, block)
        assert same(ours, codec.quantize(plain, global_scale, method)), shape


def test_every_fp8_value_is_read() -> None:
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F] + [0, 0], dtype=torch.uint8)
    weight = codes.view(16, 16).view(torch.float8_e4m3fn)
    plain = codec.fp8_to_float(weight, torch.tensor(0.01))
    scale = codec.global_scale_of(plain)
    assert same(triton_kernels.quantize_fp8(weight, torch.tensor(0.01), scale), codec.quantize(plain, scale))


@pytest.mark.parametrize("method", METHODS)
def test_int4_in_one_pass_is_the_reference_in_two(method: codec.Method) -> None:
    words = torch.randint(-(2**31), 2**31, (21, 12), dtype=torch.int64).to(torch.int32)
    scale = (torch.rand(21, 3) * 0.02).to(torch.bfloat16)
    plain = codec.int4_to_float(words, scale)
    global_scale = codec.global_scale_of(plain, method)
    ours = triton_kernels.quantize_int4(words, scale, global_scale, method)
    assert same(ours, codec.quantize(plain, global_scale, method))


@pytest.mark.parametrize("poison", [math.nan, -math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_name(poison: float) -> None:
    weight = torch.ones(40, 272, dtype=torch.bfloat16)
    weight[39, 271] = poison
    with pytest.raises(codec.NonFiniteError, match="Tensor model.layers.3.w holds"):
        triton_kernels.quantize(weight, torch.tensor(1.0), name="model.layers.3.w")
    with pytest.raises(codec.NonFiniteError, match="Tensor a"):
        triton_kernels.quantize_fp8(
            torch.ones(2, 16).to(torch.float8_e4m3fn), torch.tensor(poison), torch.tensor(1.0), name="a"
        )
    with pytest.raises(codec.NonFiniteError, match="Tensor b"):
        scale = torch.tensor([[1.0], [poison]])
        triton_kernels.quantize_int4(torch.ones(2, 4, dtype=torch.int32), scale, torch.tensor(1.0), name="b")


def test_a_shape_that_cannot_be_packed_is_refused_by_name() -> None:
    with pytest.raises(codec.ShapeError, match="Tensor w of shape"):
        triton_kernels.quantize(torch.ones(4, 24), torch.tensor(1.0), name="w")
    with pytest.raises(codec.ShapeError, match="Tensor w of shape"):
        triton_kernels.quantize_fp8(torch.ones(4, 32).to(torch.float8_e4m3fn), torch.ones(3), torch.ones(()), name="w")
    with pytest.raises(codec.ShapeError, match="Tensor w of shape"):
        triton_kernels.quantize_int4(torch.ones(2, 4, dtype=torch.int32), torch.ones(2, 2), torch.ones(()), name="w")
