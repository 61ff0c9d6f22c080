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


@pytest.fixture
def made() -> type[Made]:
    return Made
