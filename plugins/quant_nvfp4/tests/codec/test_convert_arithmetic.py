"""What a conversion does with rows where there are kernels, here Triton's interpreter's: the bytes of the codec."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels on the CPU need TRITON_INTERPRET=1", allow_module_level=True)

from optistack_quant_nvfp4 import codec, triton_kernels
from optistack_quant_nvfp4.convert import arithmetic
from optistack_quant_nvfp4.convert.layer import Form, Layer
from optistack_quant_nvfp4.convert.tensor_file import Place
from optistack_quant_nvfp4.convert.values import Stored

DRAW = torch.Generator().manual_seed(11)


def layer(form: Form, shape: tuple[int, int], block: tuple[int, int]) -> Layer:
    leaf = "weight_packed" if form == "int4" else "weight"
    return Layer("mlp.up_proj", form, shape, "routed-experts", "routed-experts", {leaf: _place()}, block)


def _place() -> Place:
    return Place(Path("model.safetensors"), 0, "BF16", (1,), 2)


def fp8(rows: int, cols: int, block: tuple[int, int], scales: tuple[int, int]) -> Stored:
    weight = torch.randn(rows, cols, generator=DRAW).to(torch.float8_e4m3fn)
    return Stored(layer("fp8", (rows, cols), block), weight, torch.rand(scales, generator=DRAW) * 0.01 + 0.001)


def int4(rows: int, cols: int, group: int) -> Stored:
    words = torch.randint(-(2**31), 2**31, (rows, cols // 8), generator=DRAW, dtype=torch.int64).to(torch.int32)
    scale = (torch.rand(rows, cols // group, generator=DRAW) * 0.01 + 0.001).bfloat16()
    return Stored(layer("int4", (rows, cols), (1, group)), words, scale)


ROWS: dict[str, tuple[Stored, str]] = {
    "plain": (
        Stored(layer("plain", (9, 64), (1, 1)), (torch.randn(9, 64, generator=DRAW) * 0.02).bfloat16()),
        "quantize",
    ),
    "fp8 in blocks": (fp8(40, 80, (32, 32), (2, 3)), "quantize_fp8"),
    "fp8 by channel": (fp8(7, 48, (1, 48), (7, 1)), "quantize_fp8"),
    "fp8 by tensor, some rows": (fp8(7, 48, (48, 48), (1, 1)), "quantize_fp8"),
    "fp8 in blocks that are no multiple": (fp8(8, 48, (8, 24), (1, 2)), "quantize"),
    "int4": (int4(5, 96, 32), "quantize_int4"),
    "int4 in groups of 8": (int4(5, 96, 8), "quantize"),
}


@pytest.mark.parametrize("method", ["amax", "mse", "four-over-six"])
@pytest.mark.parametrize("form", ROWS)
def test_rows_of_each_form_go_to_their_kernel_and_come_out_as_the_codecs(
    form: str, method: codec.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, kernel = ROWS[form]
    scale = codec.global_scale_of(rows.values(), method)
    wanted = arithmetic.quantize(rows, scale, method)
    called: list[str] = []
    for name in ("quantize", "quantize_fp8", "quantize_int4"):
        own: Any = getattr(triton_kernels, name)
        monkeypatch.setattr(triton_kernels, name, lambda *a, own=own, name=name: (called.append(name), own(*a))[1])
    monkeypatch.setattr(arithmetic, "has_kernels", lambda device: True)
    found = arithmetic.quantize(rows, scale, method)
    assert called == [kernel]
    assert torch.equal(found.values, wanted.values)
    assert torch.equal(found.block_scales.view(torch.uint8), wanted.block_scales.view(torch.uint8))
    assert torch.equal(arithmetic.dequantize(found), codec.dequantize(wanted))


def test_an_error_names_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fp8(4, 32, (4, 32), (1, 1))
    spoiled = Stored(rows.layer, rows.weight, torch.tensor([[float("nan")]]))
    for kernels in (False, True):
        monkeypatch.setattr(arithmetic, "has_kernels", lambda device, kernels=kernels: kernels)
        with pytest.raises(codec.NonFiniteError, match=r"Tensor mlp\.up_proj holds"):
            arithmetic.quantize(spoiled, torch.tensor(1.0), "amax")
