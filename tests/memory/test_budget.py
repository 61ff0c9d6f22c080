"""The budget: what is charged, what is left, and why a plan is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.facts import ModelFacts, NodeFacts, load_node
from optistack.memory import BudgetRequest, EngineReserves, MemoryBudget, budget, bytes_per_token
from optistack.settings import MemoryCharge

GIB = 1024**3
Make = Callable[..., BudgetRequest]
RESERVES = EngineReserves(
    engine="sglang 0.5.23",
    context_bytes=600 * 1024**2,
    collectives_bytes=GIB,
    graphs_bytes=2 * GIB,
    activations_bytes=6 * GIB,
    host_bytes=40 * GIB,
    absorbed_mla_copies=True,
)


def test_every_byte_of_a_gpu_is_accounted_for(kimi_request: Make) -> None:
    charge = MemoryCharge(what="draft", per_gpu_bytes=2 * GIB)
    result = budget(kimi_request(tensor_parallel=4, reserves=RESERVES, charges=(charge,)))
    assert result.feasible
    assert result.capacity_bytes == 183_359 * 1024**2
    assert result.taken_bytes + result.kv_bytes == result.capacity_bytes
    labels = [line.label for line in result.lines]
    assert labels[-6:] == ["draft", "driver", "context", "collectives", "CUDA graphs", "activations"]
    assert "MLA copies" in labels


def test_gross_reserves_nothing(kimi_request: Make) -> None:
    result = budget(kimi_request(tensor_parallel=4, reserves=RESERVES, gross_hbm_gb=180))
    assert result.mode == "gross"
    assert result.reserves == ()
    assert result.capacity_bytes == 180_000_000_000
    assert "MLA copies" not in [line.label for line in result.lines]


def test_draft_kv_shares_the_pool(kimi_request: Make, kimi_draft: ModelFacts) -> None:
    draft_bytes = bytes_per_token(kimi_draft, "bfloat16", 4)
    charge = MemoryCharge(what="draft KV", per_kv_token_bytes=draft_bytes)
    alone = budget(kimi_request(tensor_parallel=4, gross_hbm_gb=180))
    with_draft = budget(kimi_request(tensor_parallel=4, gross_hbm_gb=180, charges=(charge,)))
    assert with_draft.bytes_per_kv_token == 70_272 + draft_bytes
    assert with_draft.kv_tokens == pytest.approx(alone.kv_tokens * 70_272 / (70_272 + draft_bytes), abs=1)


def test_tokens_come_in_whole_pages_and_sessions_too(kimi_request: Make) -> None:
    result = budget(kimi_request(tensor_parallel=4, gross_hbm_gb=180, page_size_tokens=64, workload_tokens=100_500))
    assert result.kv_tokens % 64 == 0
    assert result.session_tokens == 100_544
    assert result.sessions == result.kv_tokens // 100_544 == 4


def test_without_a_workload_there_are_no_sessions(kimi_request: Make) -> None:
    assert budget(kimi_request(tensor_parallel=4)).sessions is None


def test_attention_data_parallelism_multiplies_latent_kv(kimi_request: Make) -> None:
    one = budget(kimi_request(tensor_parallel=8, gross_hbm_gb=180, workload_tokens=100_500))
    eight = budget(
        kimi_request(tensor_parallel=8, gross_hbm_gb=180, workload_tokens=100_500, attention_data_parallel=8)
    )
    assert eight.kv_tokens == 8 * one.kv_tokens
    assert eight.sessions is not None
    assert one.sessions is not None
    assert eight.sessions == 8 * one.sessions


def test_a_pool_too_small_for_one_request(kimi_request: Make) -> None:
    result = budget(kimi_request(tensor_parallel=4, gross_hbm_gb=180, workload_tokens=500_000))
    assert result.kv_tokens > 0
    assert result.shortfall_bytes == (500_000 - result.kv_tokens) * 70_272 * 4
    assert "one request of the workload takes 500,000" in result.reason


def test_host_pool_larger_than_ram(kimi_request: Make) -> None:
    node = load_node("b200x8").split(2, 4)[0].node
    charge = MemoryCharge(what="host tier", host_bytes=node.host_ram_bytes)
    fits = budget(kimi_request(node=node, tensor_parallel=4, charges=(charge,)))
    assert fits.feasible
    assert fits.host_free_bytes == 0
    refused = budget(kimi_request(node=node, tensor_parallel=4, charges=(charge,), reserves=RESERVES))
    assert "Host RAM: 1142.5 GB are needed and the replica has 1099.5 GB" in refused.reason


def test_plugins_are_named_when_they_are_what_does_not_fit(kimi_request: Make) -> None:
    charge = MemoryCharge(what="draft", per_gpu_bytes=60 * GIB)
    refused = budget(kimi_request(tensor_parallel=4, charges=(charge,)))
    assert "Weights, what plugins add and what the engine reserves take" in refused.reason


def test_cpu_engine_with_a_given_pool(smollm2: ModelFacts, smollm2_draft: ModelFacts, cpu_node: NodeFacts) -> None:
    draft = MemoryCharge(what="draft KV", per_kv_token_bytes=bytes_per_token(smollm2_draft, "bfloat16"))
    request = BudgetRequest(
        model=smollm2,
        node=cpu_node,
        kv_dtype="bfloat16",
        page_size_tokens=128,
        kv_pool_bytes=2 * GIB,
        charges=(draft,),
        workload_tokens=2048,
    )
    result = budget(request)
    assert result.feasible
    assert result.device == "cpu"
    assert result.bytes_per_kv_token == 23_040 + 2 * 3 * 64 * 2 * 2
    assert result.kv_tokens == 2 * GIB // (24_576 * 128) * 128
    assert result.host_free_bytes == cpu_node.host_ram_bytes - smollm2.weight_bytes - 2 * GIB


def test_cpu_engine_without_a_pool_is_asked_for_one(smollm2: ModelFacts, cpu_node: NodeFacts) -> None:
    refused = budget(BudgetRequest(model=smollm2, node=cpu_node, kv_dtype="bfloat16"))
    assert "kv_memory_gib" in refused.reason


def test_cpu_pool_larger_than_ram(smollm2: ModelFacts, cpu_node: NodeFacts) -> None:
    request = BudgetRequest(model=smollm2, node=cpu_node, kv_dtype="bfloat16", kv_pool_bytes=30 * GIB)
    assert "the KV pool take" in budget(request).reason


def test_a_given_pool_on_gpus_must_fit(kimi_request: Make) -> None:
    fits = budget(kimi_request(tensor_parallel=4, kv_pool_bytes=10 * GIB))
    assert (fits.feasible, fits.kv_bytes) == (True, 10 * GIB)
    assert not budget(kimi_request(tensor_parallel=4, kv_pool_bytes=60 * GIB)).feasible


def test_what_the_arithmetic_does_not_know_is_said(kimi_request: Make, kimi: ModelFacts) -> None:
    attention = kimi.attention.model_copy(update={"uncounted": ("40 of 61 layers hold a state",)})
    model = kimi.model_copy(update={"attention": attention})
    assert budget(kimi_request(model=model, tensor_parallel=4)).notes == ("40 of 61 layers hold a state",)


def test_budget_survives_a_lock_file(kimi_request: Make) -> None:
    result = budget(kimi_request(tensor_parallel=4, reserves=RESERVES, workload_tokens=100_500))
    assert MemoryBudget.model_validate_json(result.model_dump_json()) == result


@given(
    gib=st.integers(0, 64),
    page=st.sampled_from([1, 16, 64, 128]),
    dtype=st.sampled_from(["bfloat16", "fp8_e4m3"]),
    ranks=st.sampled_from([1, 2, 4, 8]),
)
def test_a_charge_never_adds_tokens_and_tokens_never_outgrow_their_bytes(
    kimi_request: Make, gib: int, page: int, dtype: str, ranks: int
) -> None:
    base = kimi_request(tensor_parallel=ranks, page_size_tokens=page, kv_dtype=dtype)
    charged = base.model_copy(update={"charges": (MemoryCharge(what="it", per_gpu_bytes=gib * GIB),)})
    before, after = budget(base), budget(charged)
    assert after.kv_tokens <= before.kv_tokens
    for result in (before, after):
        assert result.kv_tokens * result.bytes_per_kv_token <= result.kv_bytes
        assert result.kv_tokens % page == 0
        assert (result.shortfall_bytes > 0) == (not result.feasible)
        assert result.kv_bytes >= 0
