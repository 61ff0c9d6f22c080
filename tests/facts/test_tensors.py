"""Bytes, parameters and precision of components, from the tensors of each quantized layout."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.errors import InputError
from optistack.facts import load_model


@pytest.mark.parametrize(
    ("layout", "word", "bytes_of_16"),
    [
        ("plain", "bf16", 32),
        ("modelopt", "nvfp4", 9),
        ("compressed", "nvfp4", 9),
        ("int4", "int4", 9),
        ("fp8", "fp8", 16),
    ],
)
def test_routed_experts_of_each_layout(write_folder: Any, made: Any, layout: str, word: str, bytes_of_16: int) -> None:
    facts = load_model(str(write_folder(made.moe_config, made.moe_tensors(layout))))
    assert facts.precision_of("routed_experts") == word
    assert facts.parameters_of("routed_experts") == made.routed_values
    scales = facts.bytes_of("routed_experts") - made.routed_values * bytes_of_16 // 16
    # A few bytes of per-tensor scales for each of 12 linears, or 4 bytes for each 128x128 block.
    assert 0 <= scales <= 12 * 8
    assert facts.precision_of("attention") == facts.precision_of("shared_experts") == "bf16"


def test_shared_experts_have_a_precision_of_their_own(write_folder: Any, made: Any) -> None:
    facts = load_model(str(write_folder(made.moe_config, made.moe_tensors("modelopt", shared="fp8"))))
    assert facts.precision_of("routed_experts") == "nvfp4"
    assert facts.precision_of("shared_experts") == "fp8"


def test_plain_headers_and_plain_config_agree(write_folder: Any, made: Any) -> None:
    folder = write_folder(made.moe_config, made.moe_tensors("plain"))
    assert load_model(str(folder)).components == load_model(str(folder / "config.json")).components


def test_nested_names_are_classified_alike(write_folder: Any, made: Any) -> None:
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": made.moe_config, "vision_config": {}}
    tensors = made.moe_tensors("modelopt", prefix="language_model.")
    tensors["vision_tower.encoder.blocks.0.mlp.fc0.weight"] = ("BF16", (8, 8))
    tensors["mm_projector.linear_1.weight"] = ("BF16", (8, 8))
    facts = load_model(str(write_folder(config, tensors)))
    plain = load_model(str(write_folder(made.moe_config, made.moe_tensors("modelopt"), name="plain")))
    assert facts.multimodal
    assert [part for part in facts.components if part.name != "vision"] == list(plain.components)
    assert facts.bytes_of("vision") == 256


def test_mla_down_projections_are_told_apart(write_folder: Any, made: Any) -> None:
    facts = load_model(str(write_folder(made.moe_config, made.moe_tensors("plain"))))
    whole = [part for part in facts.parts("attention") if part.replicated]
    assert sum(part.parameters for part in whole) == 2 * 128 * (48 + 32 + 16)


def test_prediction_layers_are_not_the_models_own(write_folder: Any, made: Any) -> None:
    tensors = made.moe_tensors("plain")
    tensors["model.layers.2.mlp.experts.0.gate_proj.weight"] = ("BF16", (64, 128))
    folder = write_folder({**made.moe_config, "num_nextn_predict_layers": 1}, tensors)
    facts = load_model(str(folder))
    assert facts.parameters_of("mtp") == 64 * 128
    assert facts.parameters_of("routed_experts") == made.routed_values


def test_number_of_experts_is_compared(write_folder: Any, made: Any) -> None:
    with pytest.raises(InputError, match="routed experts is 8, but there are 4"):
        load_model(str(write_folder({**made.moe_config, "n_routed_experts": 8}, made.moe_tensors("plain"))))


def test_latent_width_is_compared(write_folder: Any, made: Any) -> None:
    with pytest.raises(InputError, match="kv_lora_rank"):
        load_model(str(write_folder({**made.moe_config, "kv_lora_rank": 64}, made.moe_tensors("plain"))))


def test_kv_scales_are_noticed_and_do_not_change_the_precision(write_folder: Any, made: Any) -> None:
    tensors = made.llama_tensors()
    tensors["model.layers.0.self_attn.k_scale"] = ("F32", (1,))
    tensors["model.layers.0.self_attn.v_proj.v_scale"] = ("F32", (1,))
    facts = load_model(str(write_folder(made.llama_config(), tensors)))
    assert facts.kv_scales is True
    assert facts.precision_of("attention") == "bf16"
