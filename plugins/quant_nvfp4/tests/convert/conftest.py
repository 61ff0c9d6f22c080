"""Tiny checkpoints of Kimi's shape (DeepSeek-V3 with shared experts), written without torch."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from optistack_quant_nvfp4.commands.convert import planned
from optistack_quant_nvfp4.convert.plan import Plan
from optistack_quant_nvfp4.convert.tensor_file import Outline, lay_out

Experts = Literal["bf16", "int4", "fp8", "nvfp4"]
Entry = tuple[str, tuple[int, ...], bytes]

HIDDEN, WIDE, NARROW, EXPERTS, VOCAB = 128, 256, 64, 4, 64
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "moe_intermediate_size": NARROW,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
        }
    },
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|down)_proj.*"],
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
NVFP4 = {
    "producer": {"name": "modelopt", "version": "0.33.0"},
    "quantization": {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": ["lm_head", "model.layers.0*", "*self_attn*", "*shared_experts*", "model.layers.1.mlp.gate"],
    },
}


class Tiny:
    """Writes one checkpoint; ``files`` shards, each tensor in the next one, so that what belongs together is apart."""

    def __init__(self, experts: Experts, dense: Literal["bf16", "fp8"]) -> None:
        self.dice, self.experts, self.dense = random.Random(7), experts, dense
        self.tensors: dict[str, Entry] = {}

    def plain(self, name: str, *shape: int) -> None:
        count = 1
        for side in shape:
            count *= side
        values = [self.dice.gauss(0.0, 0.05) for _ in range(count)]
        self.tensors[name] = ("BF16", shape, b"".join(struct.pack("<f", value)[2:] for value in values))

    def scalar(self, name: str, value: float) -> None:
        self.tensors[name] = ("F32", (), struct.pack("<f", value))

    def matrix(self, name: str, rows: int, columns: int, form: Experts) -> None:
        if form == "bf16":
            self.plain(f"{name}.weight", rows, columns)
        elif form == "int4":
            packed = self.dice.randbytes(rows * columns // 2)
            self.tensors[f"{name}.weight_packed"] = ("I32", (rows, columns // 8), packed)
            self.plain(f"{name}.weight_scale", rows, columns // 32)
            self.tensors[f"{name}.weight_shape"] = ("I32", (2,), struct.pack("<2i", rows, columns))
        elif form == "fp8":
            values = bytes(self.dice.choice((0, 128)) + self.dice.randrange(0x7F) for _ in range(rows * columns))
            self.tensors[f"{name}.weight"] = ("F8_E4M3", (rows, columns), values)
            blocks = (-(-rows // 128), -(-columns // 128))
            scales = [0.001 * (1 + self.dice.random()) for _ in range(blocks[0] * blocks[1])]
            self.tensors[f"{name}.weight_scale_inv"] = ("F32", blocks, struct.pack(f"<{len(scales)}f", *scales))
        else:
            self.tensors[f"{name}.weight"] = ("U8", (rows, columns // 2), self.dice.randbytes(rows * columns // 2))
            scales8 = bytes(self.dice.randrange(0x40, 0x70) for _ in range(rows * columns // 16))
            self.tensors[f"{name}.weight_scale"] = ("F8_E4M3", (rows, columns // 16), scales8)
            self.scalar(f"{name}.weight_scale_2", 0.0005)
            self.scalar(f"{name}.input_scale", 0.01 + 0.001 * int(name.split(".experts.")[1].split(".")[0]))

    def mlp(self, name: str, width: int, form: Experts) -> None:
        self.matrix(f"{name}.gate_proj", width, HIDDEN, form)
        self.matrix(f"{name}.up_proj", width, HIDDEN, form)
        self.matrix(f"{name}.down_proj", HIDDEN, width, form)

    def fill(self) -> None:
        self.plain("model.embed_tokens.weight", VOCAB, HIDDEN)
        for layer in range(2):
            root = f"model.layers.{layer}"
            for norm, width in (("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN)):
                self.plain(f"{root}.{norm}.weight", width)
            attention = f"{root}.self_attn"
            self.plain(f"{attention}.q_a_layernorm.weight", 64)
            self.plain(f"{attention}.kv_a_layernorm.weight", 32)
            self.matrix(f"{attention}.q_a_proj", 64, HIDDEN, self.dense)
            self.matrix(f"{attention}.q_b_proj", 96, 64, self.dense)
            self.matrix(f"{attention}.kv_a_proj_with_mqa", 48, HIDDEN, self.dense)
            self.matrix(f"{attention}.kv_b_proj", 128, 32, self.dense)
            self.matrix(f"{attention}.o_proj", HIDDEN, 64, self.dense)
            if layer == 0:
                self.mlp(f"{root}.mlp", WIDE, self.dense)
                continue
            self.plain(f"{root}.mlp.gate.weight", EXPERTS, HIDDEN)
            self.tensors[f"{root}.mlp.gate.e_score_correction_bias"] = ("F32", (EXPERTS,), bytes(4 * EXPERTS))
            for expert in range(EXPERTS):
                self.mlp(f"{root}.mlp.experts.{expert}", NARROW, self.experts)
            self.mlp(f"{root}.mlp.shared_experts", NARROW, self.dense)
        self.plain("model.norm.weight", HIDDEN)
        self.plain("lm_head.weight", VOCAB, HIDDEN)


def write_checkpoint(folder: Path, tensors: dict[str, Entry], config: dict[str, Any], files: int) -> Path:
    """``tensors`` dealt out to ``files`` files, with config.json and an index."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    names = [f"model-{number + 1:05d}-of-{files:05d}.safetensors" for number in range(files)]
    index = {name: names[number % files] for number, name in enumerate(tensors)}
    for file in names:
        mine = {name: entry for name, entry in tensors.items() if index[name] == file}
        outlines = [Outline(name, dtype, shape, len(data)) for name, (dtype, shape, data) in mine.items()]
        header, offsets, size = lay_out(outlines, {"format": "pt"})
        content = bytearray(size)
        content[: len(header)] = header
        for name, (_, _, data) in mine.items():
            content[offsets[name] : offsets[name] + len(data)] = data
        (folder / file).write_bytes(content)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def attention_in_fp8(tensors: dict[str, Entry]) -> None:
    """ModelOpt's FP8 for the attention of both layers: one scale for the values and one for the inputs."""
    for name in [name for name in tensors if ".self_attn." in name and "norm" not in name]:
        module, (_, shape, _) = name.removesuffix(".weight"), tensors[name]
        tensors[name] = ("F8_E4M3", shape, bytes(i % 120 for i in range(shape[0] * shape[1])))
        tensors[f"{module}.weight_scale"] = ("F32", (), struct.pack("<f", 0.003))
        tensors[f"{module}.input_scale"] = ("F32", (), struct.pack("<f", 0.02))


@pytest.fixture
def mixed(tiny: Callable[..., Path]) -> Path:
    """ModelOpt's MIXED_PRECISION: NVFP4 experts, FP8 attention, the rest BF16."""
    folder = tiny("nvfp4", change=attention_in_fp8)
    entries: dict[str, dict[str, Any]] = {"model.layers.1.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}}
    for layer in range(2):
        for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"):
            entries[f"model.layers.{layer}.self_attn.{name}"] = {"quant_algo": "FP8"}
    side = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "quantized_layers": entries}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": side}))
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """``tiny(experts, dense="bf16", files=3, change=...)``: a checkpoint; ``change`` edits its tensors first."""

    def make(
        experts: Experts,
        dense: Literal["bf16", "fp8"] = "bf16",
        files: int = 3,
        change: Callable[[dict[str, Entry]], None] = lambda tensors: None,
    ) -> Path:
        one = Tiny(experts, dense)
        one.fill()
        change(one.tensors)
        config = dict(CONFIG)
        if experts == "int4":
            config["quantization_config"] = INT4
        elif experts == "fp8":
            config["quantization_config"] = FP8
        folder = write_checkpoint(tmp_path / f"tiny-{experts}", one.tensors, config, files)
        if experts == "nvfp4":
            (folder / "hf_quant_config.json").write_text(json.dumps(NVFP4))
        return folder

    return make


@pytest.fixture
def plan() -> Callable[..., Plan]:
    """``plan(folder, *scope, exclude=[...], ...)``: the conversion that the command's options describe."""

    def make(folder: Path, *scope: str, exclude: list[str] | None = None, **options: Any) -> Plan:
        settings: dict[str, Any] = {"form": None, "method": "amax", "calibration": None, "weight_only": False}
        return planned(folder, list(scope), exclude or [], **{**settings, "rest": "keep", **options})

    return make
