"""What the words and patterns of ``--scope`` mean, told without torch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optistack.errors import InputError
from optistack_quant_nvfp4.convert.plan import Plan
from optistack_quant_nvfp4.convert.scope import SCOPES
from optistack_quant_nvfp4.convert.sizes import sizes

Make = Callable[..., Path]
Planned = Callable[..., Plan]


def converted(result: Plan) -> set[str]:
    """Kinds of converted layers: numbers are stars."""
    return {re.sub(r"\.\d+", ".*", name).removeprefix("model.layers.*.") for name in result.chosen}


def test_a_word_means_a_component_and_never_its_router_norms_or_head(tiny: Make, plan: Planned) -> None:
    folder = tiny("bf16")
    assert converted(plan(folder, "routed-experts")) == {
        f"mlp.experts.*.{name}_proj" for name in ("gate", "up", "down")
    }
    assert converted(plan(folder, "shared-experts")) == {
        f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")
    }
    everything = converted(plan(folder, "linear"))
    assert "mlp.gate" not in everything
    assert not any("norm" in name or "head" in name or "embed" in name for name in everything)


def test_attention_leaves_out_the_projection_that_engines_take_apart(tiny: Make, plan: Planned) -> None:
    names = converted(plan(tiny("bf16"), "attention"))
    assert "self_attn.q_a_proj" in names
    assert "self_attn.kv_b_proj" not in names


def test_what_is_never_converted_by_itself_is_converted_when_asked_for(tiny: Make, plan: Planned) -> None:
    assert "lm_head" in plan(tiny("bf16"), "head", "dense-mlp").chosen


def test_the_vision_tower_is_its_matrices(tiny: Make, plan: Planned) -> None:
    def see(tensors: dict[str, Any]) -> None:
        tensors["vision_tower.blocks.0.mlp.fc0.weight"] = ("BF16", (32, 64), bytes(2 * 32 * 64))
        tensors["vision_tower.blocks.0.norm0.weight"] = ("BF16", (64,), bytes(2 * 64))

    assert set(plan(tiny("bf16", change=see), "vision").chosen) == {"vision_tower.blocks.0.mlp.fc0"}


@pytest.mark.parametrize("word", SCOPES)
def test_every_word_that_is_offered_can_be_used(tiny: Make, plan: Planned, word: str) -> None:
    def more(tensors: dict[str, Any]) -> None:
        tensors["vision_tower.blocks.0.mlp.fc0.weight"] = ("BF16", (32, 64), bytes(2 * 32 * 64))
        for name in ("gate", "up", "down"):
            tensors[f"model.layers.2.mlp.{name}_proj.weight"] = ("BF16", (64, 64), bytes(2 * 64 * 64))

    folder = tiny("bf16", change=more)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    assert plan(folder, word).chosen


@pytest.mark.parametrize(
    ("scope", "exclude", "says"),
    [
        (["shard-experts"], [], "Did you mean 'shared-experts'?"),
        (["draft"], [], "It has: routed-experts, shared-experts, dense-mlp, attention"),
        (["*.mlp.expert.*"], [], "Did you mean 'model.layers.*.mlp.experts.*"),
        (["linear"], ["*.nothing"], "--exclude *.nothing matches no layer"),
        (["norms"], [], "'norms' is no scope: norms are vectors"),
        (["other"], [], "'other' is no scope: it is whatever belongs to no component"),
        (["*norm"], [], "norm, which is ["),
        (["*.gate_proj"], [], "up_proj as one layer, and only the first is in the scope"),
        (["dense-mlp"], ["*"], "is excluded"),
    ],
)
def test_a_scope_that_cannot_be_is_refused_with_what_would_do(
    tiny: Make, plan: Planned, scope: list[str], exclude: list[str], says: str
) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        plan(tiny("bf16"), *scope, exclude=exclude)


def test_rows_that_are_no_whole_blocks_are_refused_by_name(tiny: Make, plan: Planned) -> None:
    def narrow(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.shared_experts.down_proj.weight"] = ("BF16", (128, 24), bytes(2 * 128 * 24))

    with pytest.raises(InputError, match=r"cannot pack model\.layers\.1\.mlp\.shared_experts\.down_proj.*\[128, 24\]"):
        plan(tiny("bf16", change=narrow), "shared-experts")


def test_experts_in_one_tensor_are_refused_with_its_shape(tiny: Make, plan: Planned) -> None:
    def fuse(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            del tensors[name]
        tensors["model.layers.1.mlp.experts.gate_up_proj"] = ("BF16", (4, 128, 128), bytes(4 * 128 * 128 * 2))

    with pytest.raises(InputError, match=r"gate_up_proj as BF16 \[4, 128, 128\].*each expert's.*by itself"):
        plan(tiny("bf16", change=fuse), "routed-experts")


def test_sizes_are_those_of_nine_bits_for_two_values(tiny: Make, plan: Planned) -> None:
    result = plan(tiny("bf16"), "shared-experts")
    one = next(size for size in sizes(result) if size.component == "shared-experts")
    values = 3 * 64 * 128
    assert (one.before, one.after, one.layers, one.converted) == ("bf16", "nvfp4", 3, 3)
    assert one.bytes_before == 2 * values
    assert one.bytes_after == values * 9 // 16 + 3 * 4
    same = [size for size in sizes(result) if size.component != "shared-experts"]
    assert all(size.bytes_before == size.bytes_after for size in same)
