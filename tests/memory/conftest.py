"""Models and nodes that budgets are worked out for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optistack.facts import ModelFacts, NodeFacts, load_model
from optistack.memory import BudgetRequest

MODELS = Path(__file__).parents[2] / "stacks" / "models"

# DeepSeek-V3's architecture at Kimi K2's widths, cut down to what fits one H200 in BF16. Measured there.
SLICE = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 20,
    "first_k_dense_replace": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 32,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
SMOLLM2_135M = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
DFLASH_FOR_SMOLLM2 = {
    **SMOLLM2_135M,
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "head_dim": 64,
    "block_size": 8,
    "num_target_layers": 30,
    "dflash_config": {"target_layer_ids": [1, 27], "mask_token_id": 2},
}


@pytest.fixture(scope="session")
def model_from(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], ModelFacts]:
    def read(config: dict[str, Any]) -> ModelFacts:
        file = tmp_path_factory.mktemp("config") / "config.json"
        file.write_text(json.dumps(config))
        return load_model(str(file))

    return read


@pytest.fixture(scope="session")
def kimi() -> ModelFacts:
    return load_model(str(MODELS / "kimi-k2.6-nvfp4"))


@pytest.fixture(scope="session")
def kimi_draft() -> ModelFacts:
    return load_model(str(MODELS / "kimi-k2.6-dflash"))


@pytest.fixture(scope="session")
def kimi_slice(model_from: Callable[[dict[str, Any]], ModelFacts]) -> ModelFacts:
    return model_from(SLICE)


@pytest.fixture(scope="session")
def smollm2(model_from: Callable[[dict[str, Any]], ModelFacts]) -> ModelFacts:
    return model_from(SMOLLM2_135M)


@pytest.fixture(scope="session")
def smollm2_draft(model_from: Callable[[dict[str, Any]], ModelFacts]) -> ModelFacts:
    return model_from(DFLASH_FOR_SMOLLM2)


@pytest.fixture
def cpu_node() -> NodeFacts:
    return NodeFacts(name="cpu", device="cpu", gpus=0, host_ram_bytes=24 * 1024**3, cpus=2)


RequestMaker = Callable[..., BudgetRequest]


@pytest.fixture(scope="session")
def kimi_request(kimi: ModelFacts) -> RequestMaker:
    """A request for Kimi on eight B200s; anything can be changed by keyword."""
    from optistack.facts import load_node

    defaults = {"model": kimi, "node": load_node("b200x8"), "kv_dtype": "bfloat16"}

    def make(**changes: Any) -> BudgetRequest:
        return BudgetRequest(**{**defaults, **changes})

    return make
