"""Bytes, parameters and precision of components, from the tensors of each quantized layout and from metadata alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack.facts import load_model
from optistack.facts.precision import FORMATS, bytes_freed

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


VALUES = EXPERTS * 3 * HIDDEN * WIDTH


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
def test_routed_experts_of_each_layout(write_folder: Any, layout: str, word: str, bytes_of_16: int) -> None:
    facts = load_model(str(write_folder(MOE, moe_tensors(layout))))
    assert facts.precision_of("routed_experts") == word
    assert facts.parameters_of("routed_experts") == VALUES
    scales = facts.bytes_of("routed_experts") - VALUES * bytes_of_16 // 16
    # A few bytes of per-tensor scales for each of 12 linears, or 4 bytes for each 128x128 block.
    assert 0 <= scales <= 12 * 8
    assert facts.precision_of("attention") == facts.precision_of("shared_experts") == "bf16"


def test_shared_experts_have_a_precision_of_their_own(write_folder: Any) -> None:
    facts = load_model(str(write_folder(MOE, moe_tensors("modelopt", shared="fp8"))))
    assert facts.precision_of("routed_experts") == "nvfp4"
    assert facts.precision_of("shared_experts") == "fp8"


def test_plain_headers_and_plain_config_agree(write_folder: Any) -> None:
    folder = write_folder(MOE, moe_tensors("plain"))
    assert load_model(str(folder)).components == load_model(str(folder / "config.json")).components


def test_nested_names_are_classified_alike(write_folder: Any) -> None:
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": MOE, "vision_config": {}}
    tensors = moe_tensors("modelopt", prefix="language_model.")
    tensors["vision_tower.encoder.blocks.0.mlp.fc0.weight"] = ("BF16", (8, 8))
    tensors["mm_projector.linear_1.weight"] = ("BF16", (8, 8))
    facts = load_model(str(write_folder(config, tensors)))
    plain = load_model(str(write_folder(MOE, moe_tensors("modelopt"), name="plain")))
    assert facts.multimodal
    assert [part for part in facts.components if part.name != "vision"] == list(plain.components)
    assert facts.bytes_of("vision") == 256


def test_mla_down_projections_are_told_apart(write_folder: Any) -> None:
    facts = load_model(str(write_folder(MOE, moe_tensors("plain"))))
    whole = [part for part in facts.parts("attention") if part.replicated]
    assert sum(part.parameters for part in whole) == 2 * HIDDEN * (48 + LATENT + ROPE)


def test_prediction_layers_are_not_the_models_own(write_folder: Any) -> None:
    tensors = moe_tensors("plain")
    tensors["model.layers.2.mlp.experts.0.gate_proj.weight"] = ("BF16", (64, 128))
    folder = write_folder({**MOE, "num_nextn_predict_layers": 1}, tensors)
    facts = load_model(str(folder))
    assert facts.parameters_of("mtp") == 64 * 128
    assert facts.parameters_of("routed_experts") == VALUES


def test_number_of_experts_is_compared(write_folder: Any) -> None:
    with pytest.raises(InputError, match="routed experts is 8, but there are 4"):
        load_model(str(write_folder({**MOE, "n_routed_experts": 8}, moe_tensors("plain"))))


def test_latent_width_is_compared(write_folder: Any) -> None:
    with pytest.raises(InputError, match="kv_lora_rank"):
        load_model(str(write_folder({**MOE, "kv_lora_rank": 64}, moe_tensors("plain"))))


def test_kv_scales_are_noticed_and_do_not_change_the_precision(write_folder: Any, made: Any) -> None:
    tensors = made.llama_tensors()
    tensors["model.layers.0.self_attn.k_scale"] = ("F32", (1,))
    tensors["model.layers.0.self_attn.v_proj.v_scale"] = ("F32", (1,))
    facts = load_model(str(write_folder(made.llama_config(), tensors)))
    assert facts.kv_scales is True
    assert facts.precision_of("attention") == "bf16"


NVFP4_GROUP = {"num_bits": 4, "type": "float", "group_size": 16}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*", "lm_head"]}, ("nvfp4", "bf16")),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": NVFP4_GROUP}},
                "ignore": ["lm_head", "re:.*self_attn.*"],
            },
            ("nvfp4", "bf16"),
        ),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", "fp8")),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "FP8",
                "exclude_modules": ["language_model.model.layers.0.self_attn", "language_model.layers.1.self_attn*"],
            },
            ("fp8", "bf16"),
        ),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    **{
                        f"model.layers.{layer}.self_attn.{name}": {"quant_algo": "FP8"}
                        for layer in (0, 1)
                        for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
                    },
                    "model.layers.1.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
                },
            },
            ("nvfp4", "fp8"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {"targets": ["re:.*experts.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}}
                },
            },
            ("int4", "bf16"),
        ),
    ],
)
def test_precision_from_metadata_alone(write_folder: Any, section: Any, expected: tuple[str, str]) -> None:
    facts = load_model(str(write_folder({**MOE, "quantization_config": section})))
    assert facts.quantization is not None
    assert (facts.precision_of("routed_experts"), facts.precision_of("attention")) == expected
    assert facts.precision_of("embeddings") == facts.precision_of("router") == "bf16"


def test_sidecar_fills_in_what_the_config_lacks(write_folder: Any) -> None:
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    sidecar = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["*attn*"]}}
    folder = write_folder({**MOE, "quantization_config": section}, sidecar=sidecar)
    quantization = load_model(str(folder)).quantization
    assert quantization is not None
    assert (quantization.kv_cache_algo, quantization.ignored) == ("FP8", ("*attn*",))


def test_sidecar_that_contradicts_the_config(write_folder: Any) -> None:
    section = {"quant_method": "modelopt", "quant_algo": "FP8"}
    folder = write_folder({**MOE, "quantization_config": section}, sidecar={"quantization": {"quant_algo": "NVFP4"}})
    with pytest.raises(InputError, match=r"says the weights are FP8, hf_quant_config\.json beside it says NVFP4"):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("scheme", "word"),
    [({"num_bits": 8, "type": "float"}, "FP8"), ({"num_bits": 4, "type": "float"}, "NVFP4"), (None, None)],
)
def test_kv_cache_scheme(write_folder: Any, scheme: Any, word: str | None) -> None:
    section = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme}
    quantization = load_model(str(write_folder({**MOE, "quantization_config": section}))).quantization
    assert quantization is not None
    assert quantization.kv_cache_algo == word


def test_packing_that_nobody_knows(write_folder: Any) -> None:
    section = {"quant_method": "secret-sauce"}
    with pytest.raises(InputError, match="How 'secret-sauce' packs weights is not known"):
        load_model(str(write_folder({**MOE, "quantization_config": section})))


def test_pattern_that_is_no_expression(write_folder: Any) -> None:
    section = {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": ["re:["]}
    with pytest.raises(InputError, match="no regular expression"):
        load_model(str(write_folder({**MOE, "quantization_config": section})))


@given(blocks=st.integers(0, 10**9), word=st.sampled_from(sorted(FORMATS)))
def test_bytes_grow_with_parameters_and_never_shrink_below_their_bits(blocks: int, word: str) -> None:
    form = FORMATS[word]
    parameters = 32 * blocks
    assert form.bytes_of(parameters) * 8 >= parameters * form.bits
    assert form.bytes_of(parameters + 32) > form.bytes_of(parameters)


@given(parameters=st.integers(0, 10**12), a=st.sampled_from(sorted(FORMATS)), b=st.sampled_from(sorted(FORMATS)))
def test_bytes_freed_is_undone_by_going_back(parameters: int, a: str, b: str) -> None:
    assert bytes_freed(parameters, a, b) == -bytes_freed(parameters, b, a)


def test_nvfp4_is_nine_bytes_for_sixteen_values() -> None:
    assert FORMATS["nvfp4"].bytes_of(16) == 9
    with pytest.raises(InputError, match="not a weight precision"):
        bytes_freed(1, "fp9", "bf16")
