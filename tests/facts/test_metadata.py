"""Precision of components from the quantization metadata alone, and the bytes of each format."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack.facts import load_model
from optistack.facts.precision import FORMATS, bytes_freed

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
def test_precision_from_metadata_alone(write_folder: Any, made: Any, section: Any, expected: tuple[str, str]) -> None:
    facts = load_model(str(write_folder({**made.moe_config, "quantization_config": section})))
    assert facts.quantization is not None
    assert (facts.precision_of("routed_experts"), facts.precision_of("attention")) == expected
    assert facts.precision_of("embeddings") == facts.precision_of("router") == "bf16"


def test_sidecar_fills_in_what_the_config_lacks(write_folder: Any, made: Any) -> None:
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    sidecar = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["*attn*"]}}
    folder = write_folder({**made.moe_config, "quantization_config": section}, sidecar=sidecar)
    quantization = load_model(str(folder)).quantization
    assert quantization is not None
    assert (quantization.kv_cache_algo, quantization.ignored) == ("FP8", ("*attn*",))


def test_sidecar_that_contradicts_the_config(write_folder: Any, made: Any) -> None:
    section = {"quant_method": "modelopt", "quant_algo": "FP8"}
    folder = write_folder(
        {**made.moe_config, "quantization_config": section}, sidecar={"quantization": {"quant_algo": "NVFP4"}}
    )
    with pytest.raises(InputError, match=r"says the weights are FP8, hf_quant_config\.json beside it says NVFP4"):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("scheme", "word"),
    [({"num_bits": 8, "type": "float"}, "FP8"), ({"num_bits": 4, "type": "float"}, "NVFP4"), (None, None)],
)
def test_kv_cache_scheme(write_folder: Any, made: Any, scheme: Any, word: str | None) -> None:
    section = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme}
    quantization = load_model(str(write_folder({**made.moe_config, "quantization_config": section}))).quantization
    assert quantization is not None
    assert quantization.kv_cache_algo == word


def test_integers_of_a_nested_config(write_folder: Any, made: Any) -> None:
    # The form of Kimi's own INT4 release: compressed-tensors inside the text part.
    weights = {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}
    section = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj.*"],
    }
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": {**made.moe_config, "quantization_config": section},
    }
    facts = load_model(str(write_folder(config)))
    assert {part.name for part in facts.components if part.precision == "int4"} == {"routed_experts"}
    assert facts.bytes_of("routed_experts") == made.routed_values // 2 + made.routed_values // 32 * 2
    assert facts.quantization is not None
    assert facts.quantization.algo == ("pack-quantized",)


def test_packing_that_nobody_knows(write_folder: Any, made: Any) -> None:
    section = {"quant_method": "secret-sauce"}
    with pytest.raises(InputError, match="How 'secret-sauce' packs weights is not known"):
        load_model(str(write_folder({**made.moe_config, "quantization_config": section})))


def test_pattern_that_is_no_expression(write_folder: Any, made: Any) -> None:
    section = {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": ["re:["]}
    with pytest.raises(InputError, match="no regular expression"):
        load_model(str(write_folder({**made.moe_config, "quantization_config": section})))


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
