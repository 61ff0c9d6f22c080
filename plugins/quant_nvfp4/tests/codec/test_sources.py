from __future__ import annotations

import pytest
import torch

from optistack_quant_nvfp4 import codec


def test_fp8_is_scaled_by_tensor_row_and_block() -> None:
    weight = torch.randn(130, 140).to(torch.float8_e4m3fn)
    values = weight.to(torch.float32)
    assert torch.equal(codec.fp8_to_float(weight, torch.tensor([0.3])), values * 0.3)
    rows = torch.rand(130, 1)
    assert torch.equal(codec.fp8_to_float(weight, rows), values * rows)
    assert torch.equal(codec.fp8_to_float(weight, rows[:, 0]), values * rows)
    grid = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    back = codec.fp8_to_float(weight, grid, block=(128, 128))
    assert torch.equal(back[:128, :128], values[:128, :128])
    assert torch.equal(back[128:, :128], values[128:, :128] * 3)
    assert torch.equal(back[:128, 128:], values[:128, 128:] * 2)
    assert torch.equal(back[128:, 128:], values[128:, 128:] * 4)


def test_a_matrix_of_one_block_takes_its_scale_as_a_grid() -> None:
    weight = torch.randn(16, 32).to(torch.float8_e4m3fn)
    assert torch.equal(codec.fp8_to_float(weight, torch.tensor([[2.0]]), block=(128, 128)), weight.float() * 2)


def test_scales_that_do_not_belong_are_refused_by_name() -> None:
    weight = torch.zeros(130, 140, dtype=torch.float8_e4m3fn)
    with pytest.raises(codec.ShapeError, match=r"Tensor w of shape \[130, 140\] needs scales of \[2, 2\]"):
        codec.fp8_to_float(weight, torch.ones(1, 2), block=(128, 128), name="w")
    with pytest.raises(codec.ShapeError, match="one scale or one for each row"):
        codec.fp8_to_float(weight, torch.ones(140), name="w")
    words = torch.zeros(4, 8, dtype=torch.int32)
    with pytest.raises(codec.ShapeError, match=r"Tensor w .* a scale for each 32 columns"):
        codec.int4_to_float(words, torch.ones(4, 3), name="w")
    with pytest.raises(codec.ShapeError, match=r"needs \[4, 4\] words for 4x32 values"):
        codec.int4_to_float(words, torch.ones(4, 1), shape=(4, 32), name="w")


def test_every_nibble_is_read_in_its_place() -> None:
    words = torch.tensor([[0x76543210, -0x01234568]], dtype=torch.int32)  # the second is 0xFEDCBA98
    back = codec.int4_to_float(words, torch.tensor([[2.0]]), group=16)
    assert back.tolist() == [[2.0 * value for value in range(-8, 8)]]
