"""vLLM's own reading of the metadata: which layers are NVFP4 to it. Its kernels need a GPU, its parser does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Make = Callable[..., Path]
PACKED = {"gate_up_proj": ["gate_proj", "up_proj"], "fused_qkv_a_proj": ["q_a_proj", "kv_a_proj_with_mqa"]}
SHARED = ("model.layers.1.mlp.shared_experts.gate_up_proj", "model.layers.1.mlp.shared_experts.down_proj")
NEVER = (
    "model.layers.0.mlp.gate_up_proj",
    "model.layers.0.self_attn.fused_qkv_a_proj",
    "model.layers.1.self_attn.kv_b_proj",
    "model.layers.1.mlp.gate",
    "lm_head",
)


def section(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_bytes())["quantization_config"]
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("experts", "word", "routed"), [("nvfp4", "NVFP4", True), ("bf16", "W4A16_NVFP4", False)])
def test_vllm_reads_modelopts_form(tiny: Make, convert: Make, experts: str, word: str, routed: bool) -> None:
    modelopt = pytest.importorskip("vllm.model_executor.layers.quantization.modelopt")
    read = modelopt.ModelOptNvFp4Config.from_config(section(convert(tiny(experts), "--scope", "shared-experts")))
    read.packed_modules_mapping = PACKED
    assert read.quant_method == word
    assert not any(read.is_layer_excluded(name) for name in SHARED)
    assert all(read.is_layer_excluded(name) for name in NEVER)
    assert read.is_layer_excluded("model.layers.1.mlp.experts") is not routed


@pytest.mark.filterwarnings("ignore")
def test_vllm_reads_each_layers_precision_where_attention_is_fp8(mixed: Path, convert: Make) -> None:
    modelopt = pytest.importorskip("vllm.model_executor.layers.quantization.modelopt")
    found = section(convert(mixed, "--scope", "shared-experts"))
    assert modelopt.ModelOptMixedPrecisionConfig.override_quantization_method(found, None) == "modelopt_mixed"
    read = modelopt.ModelOptMixedPrecisionConfig.from_config(found)
    read.packed_modules_mapping = PACKED
    for name in (*SHARED, "model.layers.1.mlp.experts"):
        assert read._resolve_quant_algo(name) == "NVFP4" and not read.is_layer_excluded(name)
    for name in ("fused_qkv_a_proj", "q_b_proj", "kv_b_proj", "o_proj"):
        assert read._resolve_quant_algo(f"model.layers.0.self_attn.{name}") == "FP8"
        assert not read.is_layer_excluded(f"model.layers.0.self_attn.{name}")
    for name in ("model.layers.0.mlp.gate_up_proj", "model.layers.1.mlp.gate", "lm_head"):
        assert read._resolve_quant_algo(name) is None and read.is_layer_excluded(name)


@pytest.mark.filterwarnings("ignore")
def test_vllm_reads_compressed_tensors_with_int4_experts(tiny: Make, convert: Make) -> None:
    reader = pytest.importorskip("vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors")
    folder = convert(tiny("int4"), "--scope", "shared-experts", "--format", "compressed-tensors")
    read = reader.CompressedTensorsConfig.from_config(section(folder))
    read.packed_modules_mapping = PACKED
    linear = torch.nn.Linear(1, 1)
    for name in SHARED:
        scheme = read.get_scheme_dict(linear, name)
        assert scheme["format"] == "nvfp4-pack-quantized"
        assert read._is_nvfp4_format(scheme["weights"])
    assert read.get_scheme_dict(linear, "model.layers.1.mlp.experts.0.gate_proj")["format"] == "pack-quantized"
    assert all(read.get_scheme_dict(linear, name) is None for name in NEVER)
