"""Checkpoints made by hand: a safetensors file is a length, a JSON header and bytes; no library writes them here."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
BYTES = {"U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8}


def shard_bytes(tensors: Shapes, fill: int = 0) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes([fill]) * offset


def llama_config(**changes: Any) -> dict[str, Any]:
    """SmolLM2's proportions, made tiny: 2 layers, 4 heads, 2 KV heads, tied embeddings."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "max_position_embeddings": 512,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
    }
    return {**config, **changes}


def llama_tensors(layers: int = 2, hidden: int = 64, kv: int = 32) -> dict[str, tuple[str, tuple[int, ...]]]:
    tensors = {"model.embed_tokens.weight": ("BF16", (96, hidden)), "model.norm.weight": ("BF16", (hidden,))}
    for layer in range(layers):
        root = f"model.layers.{layer}"
        for name, shape in {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (128, hidden),
            "mlp.up_proj": (128, hidden),
            "mlp.down_proj": (hidden, 128),
        }.items():
            tensors[f"{root}.{name}.weight"] = ("BF16", shape)
    return tensors


HIDDEN, WIDTH, EXPERTS, LATENT, ROPE, HEADS = 128, 64, 4, 32, 16, 4

MOE = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "moe_intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "num_attention_heads": HEADS,
    "q_lora_rank": 48,
    "kv_lora_rank": LATENT,
    "qk_rope_head_dim": ROPE,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "vocab_size": 160,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
}


def linear(name: str, rows: int, columns: int, layout: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of one linear layer of ``rows`` x ``columns`` in ``layout``."""
    if layout == "modelopt":
        return {
            f"{name}.weight": ("U8", (rows, columns // 2)),
            f"{name}.weight_scale": ("F8_E4M3", (rows, columns // 16)),
            f"{name}.weight_scale_2": ("F32", ()),
            f"{name}.input_scale": ("F32", ()),
        }
    if layout == "compressed":
        return {
            f"{name}.weight_packed": ("U8", (rows, columns // 2)),
            f"{name}.weight_scale": ("F8_E4M3", (rows, columns // 16)),
            f"{name}.weight_global_scale": ("F32", (1,)),
            f"{name}.input_global_scale": ("F32", (1,)),
        }
    if layout == "int4":
        return {
            f"{name}.weight_packed": ("I32", (rows, columns // 8)),
            f"{name}.weight_scale": ("BF16", (rows, columns // 32)),
            f"{name}.weight_shape": ("I32", (2,)),
        }
    if layout == "fp8":
        blocks = (-(-rows // 128), -(-columns // 128))
        return {f"{name}.weight": ("F8_E4M3", (rows, columns)), f"{name}.weight_scale_inv": ("F32", blocks)}
    return {f"{name}.weight": ("BF16", (rows, columns))}


def moe_tensors(experts: str, shared: str = "plain", prefix: str = "") -> dict[str, tuple[str, tuple[int, ...]]]:
    root = f"{prefix}model."
    tensors = {
        f"{root}embed_tokens.weight": ("BF16", (160, HIDDEN)),
        f"{prefix}lm_head.weight": ("BF16", (160, HIDDEN)),
        f"{root}norm.weight": ("BF16", (HIDDEN,)),
    }
    for layer in (0, 1):
        block = f"{root}layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{block}.{norm}.weight"] = ("BF16", (HIDDEN,))
        tensors[f"{block}.self_attn.q_a_layernorm.weight"] = ("BF16", (48,))
        tensors[f"{block}.self_attn.kv_a_layernorm.weight"] = ("BF16", (LATENT,))
        for name, rows, columns in (
            ("q_a_proj", 48, HIDDEN),
            ("q_b_proj", HEADS * 48, 48),
            ("kv_a_proj_with_mqa", LATENT + ROPE, HIDDEN),
            ("kv_b_proj", HEADS * 64, LATENT),
            ("o_proj", HIDDEN, HEADS * 32),
        ):
            tensors |= linear(f"{block}.self_attn.{name}", rows, columns, "plain")
    for name, rows, columns in (("gate_proj", 256, HIDDEN), ("up_proj", 256, HIDDEN), ("down_proj", HIDDEN, 256)):
        tensors |= linear(f"{root}layers.0.mlp.{name}", rows, columns, "plain")
    sparse = f"{root}layers.1.mlp"
    tensors[f"{sparse}.gate.weight"] = ("BF16", (EXPERTS, HIDDEN))
    tensors[f"{sparse}.gate.e_score_correction_bias"] = ("BF16", (EXPERTS,))
    for name, rows, columns in (("gate_proj", WIDTH, HIDDEN), ("up_proj", WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)):
        for expert in range(EXPERTS):
            tensors |= linear(f"{sparse}.experts.{expert}.{name}", rows, columns, experts)
        tensors |= linear(f"{sparse}.shared_experts.{name}", rows, columns, shared)
    return tensors


WriteFolder = Callable[..., Path]


@pytest.fixture
def write_folder(tmp_path: Path) -> WriteFolder:
    """Write a checkpoint folder: a config and, unless None, one shard or several with an index."""

    def write(
        config: Mapping[str, Any],
        *shards: Shapes,
        name: str = "checkpoint",
        sidecar: Mapping[str, Any] | None = None,
        fill: int = 0,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        if sidecar is not None:
            (folder / "hf_quant_config.json").write_text(json.dumps(sidecar))
        if len(shards) == 1:
            (folder / "model.safetensors").write_bytes(shard_bytes(shards[0], fill))
        elif shards:
            weight_map = {}
            for number, shard in enumerate(shards, start=1):
                file = f"model-{number:05}-of-{len(shards):05}.safetensors"
                (folder / file).write_bytes(shard_bytes(shard, fill))
                weight_map.update(dict.fromkeys(shard, file))
            index = {"metadata": {}, "weight_map": weight_map}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    return write


class Made:
    """The builders above, for tests: with importlib mode a conftest cannot be imported."""

    shard_bytes = staticmethod(shard_bytes)
    llama_config = staticmethod(llama_config)
    llama_tensors = staticmethod(llama_tensors)
    moe_config = MOE
    moe_tensors = staticmethod(moe_tensors)
    routed_values = EXPERTS * 3 * HIDDEN * WIDTH


@pytest.fixture
def made() -> type[Made]:
    return Made
