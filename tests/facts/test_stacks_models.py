"""The shapes under stacks/models are what the README beside them says."""

from __future__ import annotations

from pathlib import Path

import pytest

from optistack.facts import ModelFacts, load_model

MODELS = Path(__file__).parents[2] / "stacks" / "models"


@pytest.fixture(scope="module")
def kimi() -> ModelFacts:
    return load_model(str(MODELS / "kimi-k2.6-nvfp4"))


def test_kimi_is_read_through_its_wrapper(kimi: ModelFacts) -> None:
    assert kimi.architecture == "KimiK25ForConditionalGeneration"
    assert (kimi.layers, kimi.dense_layers, kimi.hidden, kimi.vocab) == (61, 1, 7168, 163840)
    assert kimi.max_context_tokens == 262144
    assert kimi.multimodal
    assert kimi.attention.kind == "mla"
    assert (kimi.attention.kv_lora_rank, kimi.attention.qk_rope_head_dim) == (512, 64)
    assert kimi.moe is not None
    assert (kimi.moe.routed_experts, kimi.moe.experts_per_token, kimi.moe.shared_experts) == (384, 8, 1)


def test_kimi_has_only_its_routed_experts_in_nvfp4(kimi: ModelFacts) -> None:
    quantized = {part.name for part in kimi.components if part.precision == "nvfp4"}
    assert quantized == {"routed_experts"}
    assert {part.precision for part in kimi.components} == {"nvfp4", "bf16"}
    assert kimi.quantization is not None
    assert (kimi.quantization.method, kimi.quantization.kv_cache_algo) == ("modelopt", "FP8")


def test_kimi_has_a_trillion_parameters(kimi: ModelFacts) -> None:
    # Published: 1.04 T in all (the vision tower is 0.4 G of it), 32 G used for a token.
    assert kimi.parameters == pytest.approx(1.04e12, rel=0.02)
    assert kimi.parameters_of("vision") == pytest.approx(0.47e9, rel=0.01)


def test_draft_borrows_embedding_and_head() -> None:
    draft = load_model(str(MODELS / "kimi-k2.6-dflash"))
    assert draft.draft_config == {"target_layer_ids": [1, 12, 24, 35, 47, 58], "mask_token_id": 163838, "block_size": 8}
    assert draft.parts("embeddings") == draft.parts("head") == ()
    # fc maps the captured layers' hidden states to the draft's own.
    assert draft.parameters_of("other") == 6 * 7168 * 7168
    assert draft.attention.kind == "gqa"
    assert draft.weight_bytes == pytest.approx(6.96e9, rel=0.01)


def test_target_is_no_draft(kimi: ModelFacts) -> None:
    assert kimi.draft_config is None


def test_facts_survive_a_lock_file(kimi: ModelFacts) -> None:
    assert ModelFacts.model_validate_json(kimi.model_dump_json()) == kimi
