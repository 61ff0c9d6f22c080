"""How large the host tier becomes. The node here has 1024 GiB, of which SGLang leaves 10 and 24 go to processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import InputError, PlanRefusedError
from optistack.facts import load_model, load_node
from optistack.facts.node import GIB
from optistack.settings import KVLayout, choose
from optistack.stack.spec import ParallelSection
from optistack_hicache.sizing import GB, HostKV, HostRoom, host_kv

TARGET, DRAFT = (448 + 64) * 4, 256
ROOM_GIB = 1024 - 10 - 8 - 16


def capacity(bench: Any, **options: Any) -> int:
    return int(bench.resolve(**options).tier(2).capacity_bytes.value)


class TestDefault:
    def test_on_sglang_every_rank_passes_its_check_however_late_it_asks(self, bench: Any) -> None:
        size = capacity(bench)
        usable = ROOM_GIB * GIB
        pool = size / 4
        assert usable - 3 * pool >= 4 * pool
        assert 4 * pool > 0.99 * usable * 4 / 7

    def test_one_rank_takes_the_fraction(self, bench: Any) -> None:
        bench.parallel = ParallelSection(tensor=1)
        usable = (1024 - 10 - 8 - 4) * GIB
        assert 0.79 * usable < capacity(bench) <= 0.8 * usable
        assert capacity(bench, host_fraction=0.25) <= 0.25 * usable

    def test_sglang_before_the_check_was_divided_takes_the_fraction(self, bench: Any) -> None:
        bench.version = "0.5.17"
        assert 0.79 * ROOM_GIB * GIB < capacity(bench) <= 0.8 * ROOM_GIB * GIB

    def test_vllm_takes_what_dev_shm_has_on_a_host_as_it_comes(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm")
        assert capacity(bench) == (1024 - 8 - 16) * GIB // 2
        assert "half of the RAM" in bench.resolve().tier(2).capacity_bytes.origins[0].why
        assert capacity(bench, host_fraction=0.3) == int(0.3 * (1024 - 8 - 16) * GIB)
        assert capacity(bench, host_fraction=0.7) == int(0.7 * (1024 - 8 - 16) * GIB)
        assert capacity(bench, host_gib=700) == 700 * GIB

    def test_old_vllm_takes_up_to_twice_of_what_it_is_told(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm", version="0.26.0", traits={"host_kv_copies": "rank"})
        stack = bench.resolve()
        assert capacity(bench) == int(0.8 * (1024 - 8 - 16) * GIB / 2)
        assert stack.charges[0].host_bytes == 2 * capacity(bench)

    def test_it_is_a_default(self, bench: Any) -> None:
        assert bench.resolve().tier(2).capacity_bytes.default

    def test_the_reason_gives_the_numbers(self, bench: Any) -> None:
        why = bench.resolve().tier(2).capacity_bytes.origins[0].why
        assert "1024 GiB of RAM less 34 GiB" in why
        assert "the last one finds the others' pools taken" in why
        assert "tokens" in why


class TestAsked:
    def test_sglang_gets_whole_gigabytes_a_rank(self, bench: Any) -> None:
        assert capacity(bench, host_gib=100) == 26 * GB * 4

    def test_a_draft_is_part_of_the_size(self, bench: Any) -> None:
        bench.with_draft()
        size = capacity(bench, host_gib=100)
        share = TARGET / (TARGET + DRAFT)
        assert size <= 100 * GIB
        assert math.floor(size / 4 * share / GB + 1e-9) * GB == pytest.approx(size / 4 * share)

    def test_vllm_gets_what_is_asked(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm")
        assert capacity(bench, host_gib=100) == 100 * GIB
        assert not bench.resolve(host_gib=100).tier(2).capacity_bytes.default

    def test_more_than_the_ram_is_refused_with_the_numbers(self, bench: Any) -> None:
        with pytest.raises(PlanRefusedError, match=r"1000 GiB does not fit into 990 GiB: 1024 GiB of RAM less 34 GiB"):
            bench.resolve(host_gib=1000)

    def test_rounding_of_old_vllm_counts(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm", version="0.26.0")
        with pytest.raises(PlanRefusedError, match="600 GiB, taken 2 times by this version, does not fit"):
            bench.resolve(host_gib=600)

    def test_a_host_without_room_is_refused(self, bench: Any) -> None:
        bench.node = load_node("b200x4").model_copy(update={"host_ram_bytes": 16 * GIB})
        with pytest.raises(PlanRefusedError, match="no room for a host tier: 16 GiB of RAM less 34 GiB"):
            bench.resolve()

    def test_less_than_a_gigabyte_a_rank_is_refused_on_sglang(self, bench: Any) -> None:
        with pytest.raises(PlanRefusedError, match="at least 1 GB on each of 4 ranks"):
            bench.resolve(host_gib=2)

    @pytest.mark.parametrize("draft", [False, True])
    def test_a_size_that_is_too_small_is_told_what_is_enough(self, bench: Any, draft: bool) -> None:
        bench = bench.with_draft() if draft else bench
        with pytest.raises(PlanRefusedError, match="too small: SGLang takes whole GB") as refusal:
            bench.resolve(host_gib=0.5)
        enough = float(refusal.value.fix.removeprefix("Give a host_gib of at least ").split(",")[0])
        assert 3.7 < enough < 4.4
        assert capacity(bench, host_gib=enough) >= 4 * GB

    def test_size_and_fraction_together_are_refused(self, bench: Any) -> None:
        with pytest.raises(InputError, match="both host_gib and host_fraction"):
            bench.resolve(host_gib=2, host_fraction=0.5)

    def test_an_engine_without_a_host_tier_is_left_to_its_adapter(self, make_bench: Any) -> None:
        bench = make_bench(device="cpu", node=load_node("cpu"), traits={"host_tier": False})
        stack = bench.resolve(host_gib=5000)
        assert stack.tier(2) is not None
        assert stack.charges == ()


class TestTokens:
    def kv(self, bench: Any) -> HostKV:
        return host_kv(bench.model, bench.resolve(), bench.engine, bench.parallel)

    def test_every_rank_of_sglang_keeps_a_copy_of_mla(self, bench: Any) -> None:
        assert self.kv(bench).bytes_per_token == 4 * TARGET

    def test_vllm_keeps_one(self, make_bench: Any) -> None:
        assert self.kv(make_bench(backend="vllm")).bytes_per_token == TARGET

    def test_each_attention_group_of_vllm_keeps_one(self, make_bench: Any) -> None:
        """A group is an engine, and whether its ranks share a copy does not depend on how many engines there are
        (vllm 0.32, 0.33 distributed/kv_transfer/kv_connector/v1/offloading/config.py, replicated_layout)."""
        two = make_bench(backend="vllm", parallel=ParallelSection(tensor=4, attention_data=2))
        assert self.kv(two).bytes_per_token == TARGET
        assert self.kv(two.with_draft()).bytes_per_token == 2 * (TARGET + DRAFT)

    def test_a_divided_draft_brings_the_copies_back(self, make_bench: Any) -> None:
        assert self.kv(make_bench(backend="vllm").with_draft()).bytes_per_token == 4 * (TARGET + DRAFT)

    def test_divided_kv_is_kept_once_anyway(self, bench: Any, gqa: dict[str, Any]) -> None:
        bench.target = gqa
        whole = 2 * 4 * 64 * 4
        assert self.kv(bench).bytes_per_token == whole

    def test_attention_groups_keep_their_own_requests(self, bench: Any) -> None:
        bench.parallel = ParallelSection(tensor=4, attention_data=4)
        assert self.kv(bench).bytes_per_token == TARGET

    def test_bfloat16_takes_twice(self, bench: Any) -> None:
        bench.others = [KVLayout(dtype=choose("bfloat16"))]
        assert self.kv(bench).bytes_per_token == 4 * 2 * TARGET

    def test_the_charge_is_the_tier(self, bench: Any) -> None:
        stack = bench.resolve(host_gib=100)
        assert [(charge.what, charge.host_bytes) for charge in stack.charges] == [
            ("host KV tier", stack.tier(2).capacity_bytes.value)
        ]


@given(
    ram_gib=st.integers(64, 4096),
    ranks=st.integers(2, 8),
    target=st.integers(64, 100_000),
    draft=st.integers(0, 20_000),
)
def test_the_largest_tier_always_starts_and_a_little_more_may_not(
    ram_gib: int, ranks: int, target: int, draft: int
) -> None:
    room = HostRoom(ram_gib * GIB, 44 * GIB, ranks, overhead=1.0, whole_gb=True, late_rank=True)
    kv = HostKV(target, draft, ranks, groups=1, shared=False)
    tokens = room.largest_bytes(kv) // (ranks * (target + draft))

    def starts(tokens: int) -> bool:
        pool, drafts, free = tokens * target, tokens * draft, room.usable_bytes
        last_pool = (free - (ranks - 1) * pool) >= ranks * pool
        last_draft = (free - ranks * pool - (ranks - 1) * drafts) >= ranks * drafts
        return last_pool and last_draft

    assert starts(tokens)
    assert not starts(tokens + 1)


@given(capacity_bytes=st.integers(10**10, 10**13), ranks=st.integers(1, 8), draft=st.integers(0, 20_000))
def test_rounding_gives_whole_gigabytes_and_never_more(capacity_bytes: int, ranks: int, draft: int) -> None:
    room = HostRoom(10**13, 0, ranks, overhead=1.0, whole_gb=True, late_rank=False)
    kv = HostKV(35_136, draft, ranks, groups=1, shared=False)
    rounded = room.rounded(capacity_bytes, kv)
    each = rounded / ranks * 35_136 / (35_136 + draft) / GB
    assert rounded <= capacity_bytes + ranks
    assert abs(each - round(each)) < 1e-6


def test_a_kimi_stack_on_four_b200s(bench: Any) -> None:
    config = Path(__file__).parents[3] / "stacks" / "models" / "kimi-k2.6-nvfp4"
    kv = HostKV(load_model(str(config)).layers * 576, 6144, ranks=4, groups=1, shared=False)
    room = HostRoom(1024 * GIB, 34 * GIB, 4, overhead=1.0, whole_gb=True, late_rank=True)
    assert kv.target_bytes == 35_136
    assert kv.tokens(room.largest_bytes(kv)) == pytest.approx(4.32e6, rel=0.01)
