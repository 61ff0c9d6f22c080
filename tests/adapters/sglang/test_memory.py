"""The memory fraction gives the pool that the budget promises, and the reserves stay between what was seen to work."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optistack.facts.node import GIB
from optistack.memory.budget import MemoryBudget
from optistack.memory.lines import MemoryLine
from optistack.settings import KVLayout, MemoryCharge, Speculation, WeightQuantization, choose
from optistack_adapters.sglang.fraction import STEPS, mem_fraction_static
from optistack_adapters.sglang.reserves import media_cache_bytes

sizes = st.integers(0, 8 * GIB)


def made(capacity: int, **lines: dict[str, int]) -> MemoryBudget:
    parts = {
        name: tuple(
            MemoryLine(label=label, bytes=size, while_serving="hidden" in label) for label, size in given.items()
        )
        for name, given in lines.items()
    }
    left = capacity - sum(line.bytes for part in parts.values() for line in part)
    return MemoryBudget(
        mode="planned",
        device="cuda",
        tensor_parallel=4,
        kv_dtype="fp8_e4m3",
        capacity_bytes=capacity,
        kv_bytes=left,
        bytes_per_kv_token=1,
        page_size_tokens=64,
        kv_tokens=left,
        session_tokens=0,
        sessions=None,
        shortfall_bytes=0,
        reason="",
        host_capacity_bytes=0,
        host=(),
        host_free_bytes=0,
        **parts,
    )


def sglangs_pool(budget: MemoryBudget, fraction: float, media_bytes: int) -> float:
    """SGLang's own arithmetic (mem_cache/kv_cache_configurator.py, _profile_available_bytes)."""
    early = {line.label: line.bytes for line in budget.reserves}
    before = budget.capacity_bytes - early["driver"] - early["context"] - early["collectives"]
    draft = sum(line.bytes for line in budget.charges if line.label == "draft weights")
    available = before - budget.weight_bytes - draft
    return available - before * (1 - fraction) - media_bytes


@settings(deadline=None)
@given(
    driver=sizes,
    context=sizes,
    collectives=sizes,
    graphs=sizes,
    activations=sizes,
    draft=sizes,
    hidden=sizes,
    weights=st.integers(1, 100 * GIB),
    media=st.sampled_from([0, 100 * 2**20]),
)
def test_the_fraction_gives_the_pool_of_the_budget(
    driver: int,
    context: int,
    collectives: int,
    graphs: int,
    activations: int,
    draft: int,
    hidden: int,
    weights: int,
    media: int,
) -> None:
    budget = made(
        180 * GIB,
        weights={"routed experts": weights},
        charges={"draft weights": draft, "draft hidden states": hidden},
        reserves={
            "driver": driver,
            "context": context,
            "collectives": collectives,
            "CUDA graphs": graphs,
            "activations": activations + media,
        },
    )
    pool = sglangs_pool(budget, mem_fraction_static(budget, media_bytes=media), media)
    assert budget.kv_bytes - budget.capacity_bytes / STEPS - 1 <= pool <= budget.kv_bytes + 1


def test_media_cache_by_model_and_version(kimi: Any, llama: Any) -> None:
    assert media_cache_bytes(kimi, "0.5.23") == 100 * 2**20
    assert media_cache_bytes(kimi, "0.5.17") == 0
    assert media_cache_bytes(llama, "0.5.23") == 0


def test_the_fraction_of_the_reference_deployment_leaves_room_to_run(full: Any) -> None:
    budget = full.request.budget
    assert 0.92 < float(full.launch.value_of("--mem-fraction-static")) < 0.95
    assert budget.feasible
    assert budget.sessions >= 5


def test_no_cap_on_tokens_where_the_fraction_decides(full: Any, build: Any) -> None:
    assert not full.launch.has("--max-total-tokens")
    given = build(parallel={"tensor": 4}, serving={"kv_memory_gib": 4}).launch
    assert int(given.value_of("--max-total-tokens")) == 4 * GIB // 35136 // 64 * 64


def test_a_cap_is_for_one_attention_group(build: Any) -> None:
    planned = build(node="b200x8", parallel={"tensor": 8, "attention_data": 4}, serving={"kv_memory_gib": 4})
    assert int(planned.launch.value_of("--max-total-tokens")) * 4 == planned.request.budget.kv_tokens


def late_gib(planned: Any) -> float:
    """GiB of a GPU that the plan leaves for what is allocated after the pool."""
    before_loading = ("driver", "context", "collectives")
    lines = planned.request.budget.reserves
    return sum(line.bytes for line in lines if line.label not in before_loading) / GIB


def test_reserves_lie_between_two_published_launches(build: Any) -> None:
    """Kimi K2.6 in NVFP4, TP4: 5.7 GiB were enough with chunks of 8,192 tokens and four requests, 35 GiB with chunks of
    32,768 tokens, 160 requests and a draft (reserves.py names both)."""
    small = build(
        parallel={"tensor": 4},
        serving={"chunked_prefill_tokens": 8192, "max_running_requests": 4, "context_tokens": 262144},
    )
    draft = Speculation(method=choose("dflash"), draft_checkpoint=choose("d"), num_draft_tokens=choose(3))
    large = build(
        draft,
        node="b300x4",
        parallel={"tensor": 4},
        serving={"chunked_prefill_tokens": 32768, "max_running_requests": 160, "context_tokens": 262144},
    )
    assert 5.7 < late_gib(small) < 7.5  # 7.0 here
    assert 10 < late_gib(large) < 35  # 15.0 here


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"chunked_prefill_tokens": 4096}, {"chunked_prefill_tokens": 16384}),
        ({"max_running_requests": 8}, {"max_running_requests": 256}),
        ({"context_tokens": 8192}, {"context_tokens": 131072}),
        ({"cuda_graphs": False}, {"cuda_graphs": True}),
    ],
)
def test_reserves_grow_with_what_is_asked(build: Any, less: dict[str, Any], more: dict[str, Any]) -> None:
    small = build(parallel={"tensor": 4}, serving=less)
    large = build(parallel={"tensor": 4}, serving=more)
    assert late_gib(small) < late_gib(large)


def test_hidden_states_of_a_draft_come_out_of_the_slack_and_its_weights_do_not(build: Any) -> None:
    def fraction(what: str, *, while_serving: bool) -> float:
        charge = MemoryCharge(what=what, per_gpu_bytes=2 * GIB, while_serving=while_serving)
        draft = Speculation(
            method=choose("dflash"), draft_checkpoint=choose("d"), num_draft_tokens=choose(7), charges=(charge,)
        )
        return float(build(draft, KVLayout(), parallel={"tensor": 4}).launch.value_of("--mem-fraction-static"))

    weights = fraction("draft weights", while_serving=False)
    states = fraction("draft hidden states", while_serving=True)
    assert weights - states == pytest.approx(2 / 176.3, abs=2e-4)


def head_bytes(planned: Any) -> int:
    return next(line.bytes for line in planned.request.budget.weights if line.label == "head")


def test_groups_with_heads_of_their_own_divide_the_head_within_a_group(build: Any) -> None:
    """--enable-dp-lm-head, which DFLASH demands of attention groups (models/deepseek_v2.py, use_attn_tp_group)."""
    draft = Speculation(method=choose("dflash"), draft_checkpoint=choose("d"), num_draft_tokens=choose(7))
    groups = {"tensor": 4, "attention_data": 4}
    alone, drafting = build(parallel=groups), build(draft, parallel=groups)
    assert drafting.launch.has("--enable-dp-lm-head") and not alone.launch.has("--enable-dp-lm-head")
    assert head_bytes(drafting) == 4 * head_bytes(alone)
    assert head_bytes(build(parallel=groups, engine_args=["--enable-dp-lm-head"])) == head_bytes(drafting)
    assert head_bytes(build(draft, parallel={"tensor": 4})) == head_bytes(alone)


def test_experts_of_attention_groups_see_the_tokens_of_all(build: Any) -> None:
    """A chunk is of one group here, and the groups gather theirs (layers/dp_attention.py)."""
    chunk = {"chunked_prefill_tokens": 8192}
    one = build(parallel={"tensor": 4}, serving=chunk)
    four = build(parallel={"tensor": 4, "attention_data": 4}, serving=chunk)
    experts = 8 * (7168 + 3 * 2048 // 4) * 8192 * 2 / GIB
    assert late_gib(four) - late_gib(one) > 3 * experts


def test_shared_experts_are_whole_where_tokens_are_gathered_in_fp4(build: Any) -> None:
    """models/deepseek_v2.py, _shared_expert_use_tp1, with as many groups as ranks of whole experts."""
    cutlass = WeightQuantization(moe_backend=choose("flashinfer_cutlass"))
    same, others = {"tensor": 4, "attention_data": 4, "expert": 4}, {"tensor": 4, "attention_data": 4, "expert": 2}

    def shared(*settings: Any, parallel: dict[str, int], **spec: Any) -> int:
        lines = build(*settings, parallel=parallel, **spec).request.budget.weights
        return sum(line.bytes for line in lines if line.label == "shared experts")

    divided = shared(parallel=same)
    assert shared(cutlass, parallel=same) == 4 * divided
    assert shared(cutlass, parallel=others) == shared(cutlass, parallel={"tensor": 4}) == divided
    assert shared(cutlass, parallel=same, engine_args=["--disable-flashinfer-cutlass-moe-fp4-allgather"]) == divided
