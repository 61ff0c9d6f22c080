"""Models and nodes that the pairs are planned for: shapes alone, the same on every machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from optistack.facts.node import GIB, NodeFacts, load_node
from optistack.stack.spec import ModelSection, ParallelSection, ServingSection, WorkloadSection

KIMI = Path(__file__).resolve().parents[2] / "stacks" / "models"
NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}
    },
    "ignore": ["*self_attn*", "*lm_head", "*mlp.gate"],
}
# DeepSeek-V3's architecture at Kimi K2's widths, 20 layers of 32 experts: 60 GiB in BF16, so that one H200 holds it.
MLA: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "dtype": "bfloat16",
    "hidden_size": 7168,
    "num_hidden_layers": 20,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
}
# SmolLM2-135M.
GQA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "intermediate_size": 1536,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class Place:
    """A node with models that fit it. ``nvfp4`` is planned for where a pair has NVFP4 weights, ``plain`` elsewhere."""

    name: str
    model: str
    node: str
    plain: str
    nvfp4: str
    draft: str
    tensor: int
    input_tokens: int


PLACES = (
    Place(
        "B200",
        "Kimi K2.6 in NVFP4, TP4",
        "b200x4",
        "kimi-k2.6-nvfp4",
        "kimi-k2.6-nvfp4",
        "kimi-k2.6-dflash",
        4,
        100_000,
    ),
    Place("H200, MLA", "20 layers of Kimi K2's shape", "h200x1", "mla", "mla-nvfp4", "mla-dflash", 1, 100_000),
    Place("H200, GQA", "SmolLM2-135M's shape", "h200x1", "gqa", "gqa-nvfp4", "gqa-dflash", 1, 2048),
    Place("CPU", "SmolLM2-135M's shape", "cpu", "gqa", "gqa-nvfp4", "gqa-dflash", 1, 2048),
)


def draft_of(target: dict[str, Any], layers: int, heads: int, kv_heads: int) -> dict[str, Any]:
    """A DFlash drafter with blocks of eight for ``target``."""
    captured = [1, target["num_hidden_layers"] - 3]
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": target["hidden_size"],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": target.get("head_dim", 128),
        "intermediate_size": target["intermediate_size"],
        "layer_types": ["full_attention"] * layers,
        "vocab_size": target["vocab_size"],
        "max_position_embeddings": target["max_position_embeddings"],
        "block_size": 8,
        "num_target_layers": target["num_hidden_layers"],
        "dflash_config": {"target_layer_ids": captured, "mask_token_id": 16},
    }


@contextmanager
def models() -> Iterator[Path]:
    """A folder with all shapes; while it is there, neither engines nor checkpoints of this machine are seen."""
    shapes = {
        "mla": MLA,
        "mla-nvfp4": {**MLA, "quantization_config": NVFP4},
        "mla-dflash": draft_of(MLA, 6, 64, 8),
        "gqa": GQA,
        "gqa-nvfp4": {**GQA, "quantization_config": NVFP4},
        "gqa-dflash": draft_of(GQA, 2, 9, 3),
    }
    with TemporaryDirectory() as scratch, patch.dict("os.environ", {"XDG_CACHE_HOME": scratch, "HF_HOME": scratch}):
        for name, config in shapes.items():
            folder = Path(scratch, name)
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for folder in KIMI.iterdir():
            if folder.is_dir():
                Path(scratch, folder.name).symlink_to(folder)
        with patch("optistack.plan.build.load_node", _node):
            yield Path(scratch)


def sections(place: Place, folder: Path, *, nvfp4: bool) -> dict[str, Any]:
    """The parts of a stack file that say what is served where."""
    return {
        "model": ModelSection(checkpoint="example/model", config=str(folder / (place.nvfp4 if nvfp4 else place.plain))),
        "node": place.node,
        "parallel": ParallelSection(tensor=place.tensor),
        "workload": WorkloadSection(input_tokens=place.input_tokens, output_tokens=128, concurrency=2),
        "serving": ServingSection(kv_memory_gib=1 if place.node == "cpu" else None),
    }


def _node(word: str) -> NodeFacts:
    """A CPU node is what this machine is, everywhere but here."""
    if word != "cpu":
        return load_node(word)
    return NodeFacts(name="cpu", device="cpu", gpus=0, host_ram_bytes=64 * GIB, cpus=16)
