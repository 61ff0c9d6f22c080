"""For plain amax the bytes are those that compressed-tensors packs, and sources read as it reads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized import pack_to_int32
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.quant_scheme import NVFP4A16
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

from optistack_quant_nvfp4 import codec

SCHEME = QuantizationScheme(targets=["Linear"], **NVFP4A16)


def theirs(weight: Any, divisor: Any) -> dict[str, Any]:
    """What compressed-tensors packs for the global scale ``divisor``, its block scales from the weight in float32."""
    blocks = weight.float().unflatten(1, (-1, 16))
    scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), SCHEME.weights, divisor)
    state = {"weight": weight, "weight_scale": scale, "weight_global_scale": divisor}
    return dict(NVFP4PackedCompressor.compress(state, SCHEME))


def test_every_byte_is_the_same(weights: dict[str, Any]) -> None:
    for name, weight in weights.items():
        scale = torch.tensor(1.0) if name == "scales between" else codec.global_scale_of(weight)
        ours = codec.quantize(weight, scale)
        packed = theirs(weight, (1.0 / scale).reshape(1))
        scales = packed["weight_scale"].view(torch.uint8)
        assert torch.equal(ours.block_scales.view(torch.uint8), scales), name
        assert torch.equal(ours.values, packed["weight_packed"]), name


def test_the_global_scale_is_theirs_to_the_last_two_places(weights: dict[str, Any]) -> None:
    for name, weight in weights.items():
        if "denormal" in name:  # theirs may be no normal float32, ours is then 1
            continue
        divisor = generate_gparam(weight.float().min(), weight.float().max())
        ours = 1.0 / codec.global_scale_of(weight)
        assert abs(int(ours.view(torch.int32)) - int(divisor.view(torch.int32))) <= 2, name


def test_what_we_pack_they_unpack(weights: dict[str, Any]) -> None:
    weight = weights["usual"]
    for method in ("amax", "mse", "four-over-six"):
        ours = codec.quantize(weight, codec.global_scale_of(weight, method), method)
        state = {
            "weight_packed": ours.values,
            "weight_scale": ours.block_scales,
            "weight_global_scale": (1.0 / ours.global_scale).reshape(1),
        }
        back = NVFP4PackedCompressor.decompress(state, SCHEME)["weight"]
        assert torch.allclose(back.float(), codec.dequantize(ours), rtol=2**-8, atol=0)


@pytest.mark.parametrize(("rows", "cols"), [(3, 64), (16, 96)])
def test_their_int4_reads_as_it_was_written(rows: int, cols: int) -> None:
    codes = torch.randint(-8, 8, (rows, cols), dtype=torch.int8)
    scale = torch.rand(rows, cols // 32).to(torch.bfloat16)
    back = codec.int4_to_float(pack_to_int32(codes, 4), scale, shape=(rows, cols))
    assert torch.equal(back, (codes.float().unflatten(1, (-1, 32)) * scale.float().unsqueeze(-1)).flatten(1))
