"""Each rule firing and not firing."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.facts import load_node
from optistack.facts.node import GIB
from optistack.rules import Severity
from optistack.settings import Serving, choose
from optistack.stack.spec import ParallelSection

FILE = {"storage": "file", "storage_dir": "/ssd"}


class TestSmallerThanDevice:
    """One token takes 2048 bytes on the device and 8192 in host RAM over four ranks."""

    RULE = "hicache-smaller-than-device"

    def test_a_tier_that_holds_less_is_of_little_use(self, bench: Any) -> None:
        finding = bench.findings(host_gib=100, kv_pool_bytes=100 * GIB)[self.RULE]
        assert finding.severity is Severity.DEGRADED
        assert "of the device's 52,428,800" in finding.message

    @pytest.mark.parametrize(
        ("backend", "policy", "why"),
        [
            ("sglang", "write_through", "copies of what the device has"),
            ("sglang", "write_back", "forgets before the device"),
            ("vllm", "write_through", "forgets before the device"),
        ],
    )
    def test_it_says_why(self, make_bench: Any, backend: str, policy: str, why: str) -> None:
        bench = make_bench(backend=backend)
        assert why in bench.findings(host_gib=50, kv_pool_bytes=100 * GIB, write_policy=policy)[self.RULE].message

    def test_a_larger_one_is_fine(self, bench: Any) -> None:
        assert self.RULE not in bench.findings(host_gib=500, kv_pool_bytes=100 * GIB)


class TestLateRank:
    RULE = "hicache-sglang-late-rank"

    def test_more_than_the_safe_size_may_not_start(self, bench: Any) -> None:
        assert "at most 565" in bench.findings(host_gib=800)[self.RULE].message

    def test_the_default_always_starts(self, bench: Any) -> None:
        assert self.RULE not in bench.findings()

    @pytest.mark.parametrize("change", [{"version": "0.5.17"}, {"backend": "vllm"}])
    def test_engines_without_the_check_do_not_mind(self, make_bench: Any, change: dict[str, Any]) -> None:
        assert self.RULE not in make_bench(**change).findings(host_gib=800)


class TestDirect:
    RULE = "hicache-sglang-direct-copies"

    def test_b200_without_a_draft_is_fine(self, bench: Any) -> None:
        assert self.RULE not in bench.findings(io_backend="direct")

    def test_b300_is_not(self, bench: Any) -> None:
        bench.node = load_node("b300x4")
        assert "on B300" in bench.findings(io_backend="direct")[self.RULE].message
        assert self.RULE not in bench.findings()

    def test_a_draft_is_not_either(self, bench: Any) -> None:
        assert "draft's pool" in bench.with_draft().findings(io_backend="direct")[self.RULE].message


@pytest.mark.parametrize(
    ("backend", "rule"), [("sglang", "hicache-sglang-draft-after-load-back"), ("vllm", "hicache-vllm-draft-hits")]
)
def test_drafting_beside_a_host_tier(make_bench: Any, backend: str, rule: str) -> None:
    bench = make_bench(backend=backend)
    assert rule not in bench.findings()
    assert rule in bench.with_draft().findings()


def test_vllm_keeps_prompts_only(make_bench: Any, bench: Any) -> None:
    rule = "hicache-vllm-prompt-only"
    assert rule in make_bench(backend="vllm").findings()
    assert rule not in bench.findings()


class TestReads:
    """One token takes 2048 bytes on the device and in host RAM on one GPU."""

    FILES, ROOM = "hicache-sglang-file-reads", "hicache-sglang-storage-room"

    @pytest.fixture
    def one_gpu(self, make_bench: Any) -> Any:
        return lambda **fields: make_bench(parallel=ParallelSection(tensor=1), **fields)

    def test_an_old_sglang_on_one_gpu_reads_files_slowly(self, one_gpu: Any, make_bench: Any) -> None:
        assert one_gpu(version="0.5.17").findings(**FILE)[self.FILES].severity is Severity.DEGRADED
        assert self.FILES not in one_gpu(version="0.5.17").findings()
        assert self.FILES not in one_gpu(version="0.5.21").findings(**FILE)
        assert self.FILES not in one_gpu(backend="vllm").findings(**FILE)
        assert self.FILES not in make_bench(version="0.5.17").findings(**FILE)

    def test_what_is_read_must_fit_beside_the_copy_of_the_device(self, one_gpu: Any) -> None:
        bench = one_gpu()
        bench.others.append(Serving(context_tokens=choose(200_000)))
        pool = {"kv_pool_bytes": 10 * GIB}
        tight = {**pool, "host_gib": 11}  # 11 GB, whole
        message = bench.findings(**FILE, **tight)[self.ROOM].message
        assert f"{(11 * 10**9 - 10 * GIB) // 2048:,} tokens of a prompt of 200,000" in message
        assert self.ROOM not in bench.findings(**FILE, **pool, host_gib=13)
        assert self.ROOM not in bench.findings(**tight)
        for policy in ("write_back", "write_through_selective"):
            assert self.ROOM not in bench.findings(**FILE, **tight, write_policy=policy)
        assert "at most 0 tokens of a prompt" in bench.findings(**FILE, **pool, host_gib=5)[self.ROOM].message


class TestStorage:
    def test_storage_without_a_quota_is_noted(self, bench: Any) -> None:
        rule = "hicache-storage-unbounded"
        assert rule not in bench.findings()
        assert bench.findings(**FILE)[rule].severity is Severity.NOTE
        assert rule not in bench.findings(**FILE, storage_quota_gib=100)

    def test_nobody_is_told_to_set_a_quota_that_is_not_kept(self, bench: Any, make_bench: Any) -> None:
        rule, vllm = "hicache-storage-no-limit", make_bench(backend="vllm")
        for findings in (bench.findings(storage="mooncake"), vllm.findings(**FILE), vllm.findings(storage="mooncake")):
            assert "storage_quota_gib" not in findings[rule].fix
            assert "hicache-storage-unbounded" not in findings
        assert rule not in bench.findings(**FILE)
        assert rule not in vllm.findings(**FILE, storage_quota_gib=100)

    def test_a_quota_that_nobody_enforces(self, bench: Any, make_bench: Any) -> None:
        rule = "hicache-storage-quota-ignored"
        assert rule not in bench.findings(**FILE, storage_quota_gib=100)
        assert bench.findings(storage="mooncake", storage_quota_gib=100)[rule].severity is Severity.SILENT
        assert rule in make_bench(backend="vllm").findings(**FILE, storage_quota_gib=100)
        assert rule not in bench.findings(**FILE)

    def test_sglangs_file_names_are_noted(self, bench: Any, make_bench: Any) -> None:
        rule = "hicache-sglang-file-names"
        assert "/ssd/target-fp8_e4m3" in bench.findings(**FILE)[rule].message
        assert rule not in bench.findings(storage="mooncake")
        assert rule not in make_bench(backend="vllm").findings(**FILE)

    @pytest.mark.parametrize("key", ["file_storage_path", "root_dir"])
    def test_a_place_of_the_users_own_is_refused(self, bench: Any, key: str) -> None:
        rule = "hicache-storage-place"
        assert rule not in bench.findings(**FILE, storage_config={"eviction_ratio": 0.8})
        assert bench.findings(**FILE, storage_config={key: "/tmp"})[rule].severity is Severity.ERROR

    def test_write_back_starves_storage(self, bench: Any) -> None:
        rule = "hicache-write-back-storage"
        assert rule not in bench.findings(**FILE)
        assert rule not in bench.findings(write_policy="write_back")
        assert rule in bench.findings(**FILE, write_policy="write_back")


def test_ids_are_unique_and_every_rule_says_what_to_do() -> None:
    import optistack_hicache

    rules = optistack_hicache.optistack_rules()
    assert len({rule.id for rule in rules}) == len(rules)
    assert all(rule.id.startswith("hicache-") and rule.fix and rule.upstream for rule in rules)
