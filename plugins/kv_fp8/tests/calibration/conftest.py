"""Tiny checkpoints with random weights: grouped-query attention, and MLA with experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="calibration needs the extra `calibrate`")
transformers = pytest.importorskip("transformers", reason="calibration needs the extra `calibrate`")

VOCAB = 64


class Letters:
    """A tokenizer of one token a character."""

    chat_template = None
    pad_token_id = 0
    eos_token_id = None

    def __call__(self, text: str, return_tensors: str) -> dict[str, Any]:
        return {"input_ids": torch.tensor([[1 + ord(letter) % (VOCAB - 1) for letter in text]])}


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=128,
        eos_token_id=None,
    )
    return _saved(transformers.LlamaForCausalLM, config, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.DeepseekV3Config(
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        vocab_size=VOCAB,
        max_position_embeddings=128,
        eos_token_id=None,
    )
    return _saved(transformers.DeepseekV3ForCausalLM, config, tmp_path_factory.mktemp("deepseek"))


def _saved(kind: Any, config: Any, folder: Path) -> Path:
    torch.manual_seed(11)
    kind(config).to(torch.bfloat16).save_pretrained(folder)
    return folder
