"""What the engines are told: the metadata of a converted checkpoint."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optistack.errors import InputError
from optistack_quant_nvfp4.convert import metadata
from optistack_quant_nvfp4.convert.plan import Plan

Make = Callable[..., Path]
Planned = Callable[..., Plan]


def test_modelopt_excludes_what_is_not_nvfp4_and_nothing_else(tiny: Make, plan: Planned) -> None:
    result = plan(tiny("nvfp4"), "shared-experts")
    side, inside = metadata.modelopt(result)
    excluded = side["quantization"]["exclude_modules"]
    assert (side["quantization"]["quant_algo"], inside["quant_algo"]) == ("NVFP4", "NVFP4")
    for excludes in (metadata.vllm_excludes, metadata.sglang_excludes):

        def hit(name: str, excludes: Callable[[str, str], bool] = excludes) -> bool:
            return any(excludes(name, pattern) for pattern in excluded)

        assert not any(hit(f"model.layers.1.mlp.{name}") for name in ("shared_experts.gate_up_proj", "experts"))
        assert all(hit(f"model.layers.0.{name}") for name in ("mlp.gate_up_proj", "mlp.down_proj", "self_attn.o_proj"))
        assert hit("lm_head") and hit("model.layers.1.mlp.gate")


def test_experts_that_stay_are_excluded_by_one_pattern(tiny: Make, plan: Planned) -> None:
    side, _ = metadata.modelopt(plan(tiny("bf16"), "shared-experts"))
    assert side["quantization"]["quant_algo"] == "W4A16_NVFP4"
    patterns = [one for one in side["quantization"]["exclude_modules"] if ".experts" in one]
    assert patterns == ["model.layers.1.mlp.experts*"]
    assert fnmatch.fnmatchcase("model.layers.1.mlp.experts", patterns[0])


def test_modelopt_names_the_layers_of_each_precision_where_fp8_stays(mixed: Path, plan: Planned) -> None:
    side, inside = metadata.modelopt(plan(mixed, "shared-experts"))
    assert side["quantization"]["quant_algo"] == inside["quant_algo"] == "MIXED_PRECISION"
    layers = inside["quantized_layers"]
    assert layers == side["quantization"]["quantized_layers"]
    four = {name for name, entry in layers.items() if entry == {"quant_algo": "NVFP4", "group_size": 16}}
    root = "model.layers.1.mlp"
    shared = {f"{root}.shared_experts.{name}" for name in ("gate_proj", "up_proj", "gate_up_proj", "down_proj")}
    assert four == {f"{root}.experts", *shared}
    assert {name.split(".")[3] for name, entry in layers.items() if entry == {"quant_algo": "FP8"}} == {"self_attn"}
    assert len(layers) == len(four) + 2 * 6
    assert not any("self_attn" in name or "expert" in name for name in inside["ignore"])


def test_fp8_that_modelopt_has_no_common_word_for_is_refused(tiny: Make, plan: Planned) -> None:
    with pytest.raises(InputError, match=r"stays fp8, which modelopt metadata .* --format compressed-tensors"):
        plan(tiny("fp8", dense="fp8"), "routed-experts", form="modelopt")


def test_compressed_tensors_has_a_group_for_what_stays_int4(tiny: Make, plan: Planned) -> None:
    section = metadata.compressed_tensors(plan(tiny("int4"), "shared-experts", form="compressed-tensors"))
    assert section["format"] == "mixed-precision"
    by_format = {group["format"]: group for group in section["config_groups"].values()}
    routed, shared = "model.layers.1.mlp.experts.300.up_proj", "model.layers.1.mlp.shared_experts.up_proj"
    assert _targeted(by_format["pack-quantized"], routed) and not _targeted(by_format["pack-quantized"], shared)
    assert _targeted(by_format["nvfp4-pack-quantized"], shared)
    assert not _targeted(by_format["nvfp4-pack-quantized"], routed)


def _targeted(group: dict[str, Any], name: str) -> bool:
    return any(re.match(target.removeprefix("re:"), name) for target in group["targets"])


def test_what_modelopt_cannot_state_is_refused_with_what_can(tiny: Make, plan: Planned) -> None:
    with pytest.raises(InputError, match="stays int4.*--format compressed-tensors.*--rest bf16"):
        plan(tiny("int4"), "shared-experts", form="modelopt")
