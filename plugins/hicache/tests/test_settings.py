"""Policies, layouts, storage, and the name of its folder."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from optistack.errors import InputError, PlanRefusedError
from optistack.facts.node import GIB
from optistack.settings import KVLayout, Serving, Speculation, choose
from optistack.stack.spec import ParallelSection


class TestHostTier:
    def test_it_is_native_and_written_through(self, bench: Any) -> None:
        tier = bench.resolve().tier(2)
        assert (tier.backend.value, tier.write_policy.value) == ("native", "write_through")
        assert bench.resolve().tier(3) is None

    def test_it_needs_the_prefix_cache(self, bench: Any) -> None:
        assert bench.resolve().serving.prefix_caching.value is True
        bench.others.append(Serving(prefix_caching=choose(False)))
        with pytest.raises(PlanRefusedError, match=r"prefix_caching: hicache says True.*other says False"):
            bench.resolve()

    def test_lmcache_takes_the_place_of_the_native_tier(self, make_bench: Any) -> None:
        stack = make_bench(backend="vllm").resolve(storage="lmcache", host_gib=64)
        assert stack.tier(2).backend.value == "lmcache"
        assert stack.tier(3) is None

    @pytest.mark.parametrize("option", [{"write_policy": "sometimes"}, {"host_gib": 0}, {"host_fraction": 1.5}])
    def test_nonsense_is_refused(self, bench: Any, option: dict[str, Any]) -> None:
        with pytest.raises(InputError, match=f"Option {next(iter(option))} of plugin hicache"):
            bench.resolve(**option)


class TestCopying:
    @pytest.mark.parametrize(
        ("options", "layout", "io"),
        [
            ({}, "page_first", "kernel"),
            ({"io_backend": "kernel"}, "page_first", "kernel"),
            ({"io_backend": "direct"}, "page_first_direct", "direct"),
            ({"layout": "page_first_direct"}, "page_first_direct", "direct"),
            ({"layout": "layer_first"}, "layer_first", "kernel"),
        ],
    )
    def test_layout_and_io_backend_always_go_together(
        self, bench: Any, options: dict[str, str], layout: str, io: str
    ) -> None:
        tier = bench.resolve(**options).tier(2)
        assert (tier.layout.value, tier.io_backend.value) == (layout, io)

    def test_the_kernel_is_preferred_with_a_reason(self, bench: Any) -> None:
        value = bench.resolve().tier(2).io_backend
        assert "B300" in value.origins[0].why
        assert "28396" in value.origins[0].reference

    def test_vllm_is_told_nothing(self, make_bench: Any) -> None:
        tier = make_bench(backend="vllm").resolve().tier(2)
        assert not tier.layout.is_set
        assert not tier.io_backend.is_set


class TestStorage:
    def test_a_file_tier_lies_in_a_folder_of_its_own(self, bench: Any) -> None:
        tier = bench.resolve(storage="file", storage_dir="/ssd/kv/").tier(3)
        assert tier.backend.value == "file"
        assert tier.directory.value == f"/ssd/kv/{tier.key.value}"

    def test_fs_is_another_word_for_file(self, make_bench: Any) -> None:
        assert make_bench(backend="vllm").resolve(storage="fs", storage_dir="/ssd").tier(3).backend.value == "file"

    def test_files_need_a_folder(self, bench: Any) -> None:
        with pytest.raises(InputError, match=r"storage file needs a folder.*storage_dir"):
            bench.resolve(storage="file")

    @pytest.mark.parametrize("storage", [{}, {"storage": "none"}, {"storage": "lmcache"}])
    @pytest.mark.parametrize(
        "option",
        [
            {"storage_dir": "/ssd"},
            {"storage_quota_gib": 9},
            {"storage_tag": "a"},
            {"storage_config": {"a": 1}},
            {"prefetch_policy": "timeout"},
        ],
    )
    def test_its_options_without_it_are_refused(self, bench: Any, option: Any, storage: Any) -> None:
        with pytest.raises(InputError, match=f"{next(iter(option))} would do nothing.*storage"):
            bench.resolve(**storage, **option)

    def test_a_backend_that_the_engine_lacks_is_refused(self, make_bench: Any) -> None:
        with pytest.raises(PlanRefusedError, match=r"tiers.3.backend = nixl is not one of file, lmcache, mooncake"):
            make_bench(backend="vllm").resolve(storage="nixl", storage_dir="/ssd")

    def test_one_plugin_alone_is_not_told_of_two(self, bench: Any) -> None:
        with pytest.raises(PlanRefusedError) as refusal:
            bench.resolve(storage="bogus")
        assert refusal.value.fix == "Change the option of hicache."

    def test_its_own_settings_are_handed_on(self, bench: Any) -> None:
        tier = bench.resolve(storage="mooncake", storage_config={"master_server_address": "a:1"}).tier(3)
        assert tier.extra_config.value == {"master_server_address": "a:1"}
        assert not tier.directory.is_set

    def test_prefetching_waits_for_a_while_on_sglang(self, bench: Any, make_bench: Any) -> None:
        options = {"storage": "file", "storage_dir": "/ssd"}
        assert bench.resolve(**options).tier(3).prefetch_policy.value == "timeout"
        assert bench.resolve(**options, prefetch_policy="best_effort").tier(3).prefetch_policy.value == "best_effort"
        assert not make_bench(backend="vllm").resolve(**options).tier(3).prefetch_policy.is_set

    @pytest.mark.parametrize(("version", "copies"), [("sglang 0.5.23", 1), ("vllm 0.33.0", 1), ("vllm 0.26.0", 4)])
    def test_what_storage_must_read_is_said_for_each_thousand_tokens(
        self, make_bench: Any, version: str, copies: int
    ) -> None:
        """A token takes 2048 bytes of an MLA model, on each of four ranks, and is read as often as it is kept."""
        backend, number = version.split()
        traits = {} if copies == 1 else {"host_kv_copies": "rank"}
        bench = make_bench(backend=backend, version=number, traits=traits)
        why = bench.resolve(storage="file", storage_dir="/ssd").tier(3).backend.origins[0].why
        assert f"more than {round(copies * 2.048)} MB/s for every 1,000 tokens/s" in why


class TestQuota:
    """SGLang limits each rank by itself; together they must not exceed the quota."""

    OPTIONS: ClassVar = {"storage": "file", "storage_dir": "/ssd", "storage_quota_gib": 400}

    def max_size(self, bench: Any) -> int:
        return int(bench.resolve(**self.OPTIONS).tier(3).extra_config.value["max_size"])

    def test_the_first_rank_writes_all_of_mla(self, bench: Any) -> None:
        assert self.max_size(bench) == 400 * GIB
        assert bench.resolve(**self.OPTIONS).tier(3).capacity_bytes.value == 400 * GIB

    def test_every_rank_writes_its_part_of_divided_kv(self, bench: Any, gqa: dict[str, Any]) -> None:
        bench.target = gqa
        assert self.max_size(bench) == 100 * GIB

    def test_every_rank_writes_its_part_of_a_draft(self, bench: Any) -> None:
        bench.with_draft()
        target, draft = 2048, 256
        first, others = target + draft, draft
        limit = self.max_size(bench)
        tokens = limit / first
        assert tokens * (first + 3 * others) == pytest.approx(400 * GIB)

    def test_attention_groups_and_replicas_share_the_quota(self, bench: Any, gqa: dict[str, Any]) -> None:
        """Each writes to the one folder and counts what it wrote itself."""
        bench.parallel = ParallelSection(tensor=4, attention_data=2)
        assert self.max_size(bench) == 200 * GIB, "the first rank of each of two groups"
        bench.parallel = ParallelSection(tensor=2, replicas=2)
        assert self.max_size(bench) == 200 * GIB
        bench.target = gqa
        bench.parallel = ParallelSection(tensor=4, attention_data=2)
        assert self.max_size(bench) == 100 * GIB

    def test_a_setting_of_the_user_wins(self, bench: Any) -> None:
        tier = bench.resolve(**self.OPTIONS, storage_config={"max_size": "1G", "eviction_ratio": 0.8}).tier(3)
        assert tier.extra_config.value == {"max_size": "1G", "eviction_ratio": 0.8}

    def test_vllm_has_no_limit_to_set(self, make_bench: Any) -> None:
        assert not make_bench(backend="vllm").resolve(**self.OPTIONS).tier(3).extra_config.is_set


class TestKey:
    def key(self, bench: Any, **options: Any) -> str:
        return str(bench.resolve(storage="file", storage_dir="/ssd", **options).tier(3).key.value)

    def test_it_can_be_read_and_is_stable(self, bench: Any) -> None:
        key = self.key(bench)
        assert key.startswith("target-fp8_e4m3-pauto-page_first-tp4-sglang0.5.23-")
        assert key == self.key(bench)
        assert "/" not in key

    @pytest.mark.parametrize(
        "change",
        [
            {"others": [KVLayout(dtype=choose("bfloat16"))]},
            {"others": [KVLayout(dtype=choose("fp8_e4m3"), page_size_tokens=choose(32))]},
            {"others": [KVLayout(dtype=choose("fp8_e4m3"), scales=choose("unit"))]},
            {"others": [KVLayout(dtype=choose("fp8_e4m3")), Speculation(draft_checkpoint=choose("a/draft"))]},
            {"parallel": ParallelSection(tensor=2)},
            {"parallel": ParallelSection(tensor=4, attention_data=2)},
            {"version": "0.5.21"},
            {"backend": "vllm"},
        ],
    )
    def test_whatever_changes_the_bytes_changes_it(self, bench: Any, make_bench: Any, change: dict[str, Any]) -> None:
        assert self.key(make_bench(**change)) != self.key(bench)

    def test_another_checkpoint_of_the_same_name_changes_it(self, bench: Any) -> None:
        before = self.key(bench)
        bench.target["rope_theta"] = 50000.0
        assert self.key(bench) != before

    def test_the_layout_changes_it(self, bench: Any) -> None:
        assert self.key(bench) != self.key(bench, io_backend="direct")

    def test_another_draft_in_the_same_folder_changes_it(self, bench: Any) -> None:
        draft = bench.write("draft", {**bench.target, "num_hidden_layers": 2})
        bench.others.append(Speculation(draft_checkpoint=choose(str(draft))))
        before = self.key(bench)
        bench.write("draft", {**bench.target, "num_hidden_layers": 3})
        assert self.key(bench) != before

    def test_sizes_do_not_change_it(self, bench: Any) -> None:
        assert self.key(bench, host_gib=64) == self.key(bench, host_gib=128, storage_quota_gib=10)
