"""Bytes of weights on one GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack.facts import ModelFacts
from optistack.memory import Placement, weight_bytes, weight_lines

RANKS = st.sampled_from([1, 2, 4, 8])


def line(model: ModelFacts, placement: Placement, label: str) -> int:
    return sum(found.bytes for found in weight_lines(model, placement) if found.label == label)


def test_one_gpu_holds_the_checkpoint(kimi: ModelFacts, smollm2: ModelFacts) -> None:
    for model in (kimi, smollm2):
        assert weight_bytes(model, Placement()) == weight_bytes(model, Placement(), even=True) == model.weight_bytes


@given(ranks=RANKS, even=st.booleans())
def test_ranks_together_hold_at_least_the_checkpoint(kimi: ModelFacts, ranks: int, even: bool) -> None:
    held = weight_bytes(kimi, Placement(tensor_parallel=ranks), even=even) * ranks
    assert held >= kimi.weight_bytes
    # Rounding up, a few bytes a component.
    assert not even or held - kimi.weight_bytes < 100 * ranks


def test_replicated_parts_are_whole(kimi: ModelFacts) -> None:
    four = Placement(tensor_parallel=4)
    for label in ("router", "norms", "vision"):
        assert line(kimi, four, label) == line(kimi, Placement(), label)
    down = 61 * 7168 * (1536 + 512 + 64) * 2
    rest = kimi.bytes_of("attention") - down
    assert line(kimi, four, "attention") == down + rest // 4


def test_engine_habits(kimi: ModelFacts) -> None:
    four = Placement(tensor_parallel=4)
    vision = kimi.bytes_of("vision")
    base = weight_bytes(kimi, four)
    assert base - weight_bytes(kimi, four.model_copy(update={"vision_divided": True})) == vision - vision // 4
    assert base - weight_bytes(kimi, four.model_copy(update={"vision_loaded": False})) == vision
    copies = weight_bytes(kimi, four.model_copy(update={"absorbed_mla_copies": True})) - base
    assert copies == 61 * 512 * 64 * (128 + 128) * 2 // 4


def test_groups_that_share_experts_only_repeat_everything_else(kimi: ModelFacts) -> None:
    def lines(placement: Placement) -> dict[str, int]:
        return {found.label: found.bytes for found in weight_lines(kimi, placement)}

    placement = Placement(
        tensor_parallel=4, attention_data_parallel=4, groups_share_experts_only=True, expert_parallel=4
    )
    copies, alone = lines(placement), lines(Placement())
    assert copies["routed experts"] == lines(Placement(tensor_parallel=4))["routed experts"]
    assert {label: size for label, size in copies.items() if label != "routed experts"} == {
        label: size for label, size in alone.items() if label != "routed experts"
    }
    two = lines(placement.model_copy(update={"attention_data_parallel": 2, "vision_divided": True}))
    assert two["head"] == alone["head"] // 2 and two["vision"] == alone["vision"] // 2
    assert two["dense mlp"] == alone["dense mlp"] // 2
    # Groups of two GPUs with whole experts divide the tokens of the shared experts instead.
    assert two["shared experts"] == alone["shared experts"]
    sliced = placement.model_copy(update={"attention_data_parallel": 2, "expert_parallel": 1})
    assert lines(sliced)["shared experts"] == alone["shared experts"] // 2


def test_expert_parallelism_moves_no_bytes_when_it_divides(kimi: ModelFacts) -> None:
    label = "routed experts"
    divided = line(kimi, Placement(tensor_parallel=8), label)
    assert line(kimi, Placement(tensor_parallel=8, expert_parallel=8), label) == divided
    assert line(kimi, Placement(tensor_parallel=8, expert_parallel=2), label) == divided
    with pytest.raises(InputError, match="Expert parallel 3 does not divide"):
        weight_bytes(kimi, Placement(tensor_parallel=8, expert_parallel=3))


def test_experts_that_do_not_divide_are_rounded_up(kimi_slice: ModelFacts) -> None:
    moe = kimi_slice.moe
    assert moe is not None
    uneven = kimi_slice.model_copy(update={"moe": moe.model_copy(update={"routed_experts": 30})})
    spread = line(uneven, Placement(tensor_parallel=4, expert_parallel=4), "routed experts")
    assert spread == -(-uneven.bytes_of("routed_experts") * 8 // 30)


def test_attention_data_parallelism_repeats_attention(kimi: ModelFacts) -> None:
    eight = Placement(tensor_parallel=8)
    grouped = Placement(tensor_parallel=8, attention_data_parallel=8)
    assert line(kimi, grouped, "attention") == kimi.bytes_of("attention")
    assert line(kimi, grouped, "routed experts") == line(kimi, eight, "routed experts")


def test_few_kv_heads_are_repeated(smollm2: ModelFacts) -> None:
    # 9 query and 3 KV heads over 9 ranks: each has one query head and a whole K and V head.
    held = line(smollm2, Placement(tensor_parallel=9), "attention")
    one = 4 * 576 * 64 * 30 * 2
    assert held == one


def test_a_draft_counts_only_what_it_brings(kimi_draft: ModelFacts) -> None:
    labels = {found.label for found in weight_lines(kimi_draft, Placement(tensor_parallel=4))}
    assert labels == {"attention", "dense mlp", "norms", "other"}
    fc = 6 * 7168 * 7168 * 2
    assert line(kimi_draft, Placement(tensor_parallel=4), "other") == fc
