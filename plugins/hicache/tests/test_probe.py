"""The live checks against an honest engine and against broken ones: each check has a fault that makes it fail.

The engine here is a stand-in over HTTP that keeps the books of a host tier and a storage tier.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

import optistack_hicache.probe
from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import CheckResult, Status

PROMPT_TOKENS = 1000
TOKEN_BYTES = 2048
FILE = {"storage": "file", "storage_dir": "/ssd"}

Check = Callable[..., dict[str, CheckResult]]


@dataclass
class FakeEngine:
    """``faults``: ``no-tier``, ``no-copies``, ``no-storage`` (nothing is written), ``small`` (half the host pool),
    ``blind`` (no metrics), ``crash``. ``selective`` copies a prompt from its second use on. ``evicted`` tokens have
    come back from the host already, ``prefetched`` ones from storage."""

    dialect: str = "sglang"
    version_has_counter: bool = True
    host_tokens: int = 0
    storage: bool = False
    selective: bool = False
    evicted: int = 0
    prefetched: int = 0
    faults: set[str] = field(default_factory=set)
    uses: dict[str, int] = field(default_factory=dict)
    copied: int = 0
    silent_reads: int = 0
    """Metrics pages that show nothing of the tier, after the prompt too."""
    publishes_with_a_step: bool = False
    """The page shows what was copied when the engine took its last step, and copying takes longer."""
    page: str = ""
    neighbour: float = 0.0
    """What every counter of a second engine on the port has stood at all the time."""

    def endpoint(self) -> Endpoint:
        self.page = self.metrics()
        return Endpoint("http://engine", transport=httpx.MockTransport(self.handle))

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/metrics" and "blind" not in self.faults:
            return httpx.Response(200, text=self.page if self.publishes_with_a_step else self.metrics())
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        if path != "/v1/completions":
            return httpx.Response(404)
        if "crash" in self.faults:
            return httpx.Response(500, text="cudaMemcpyBatchAsync failed")
        prompt = json.loads(request.content)["prompt"]
        self.page = self.metrics()
        self.uses[prompt] = self.uses.get(prompt, 0) + 1
        if self.uses[prompt] == (2 if self.selective else 1) and "no-copies" not in self.faults:
            self.copied += PROMPT_TOKENS
        return httpx.Response(200, json={"choices": [{"text": ""}], "usage": {}})

    def metrics(self) -> str:
        rows = {"up": 1.0}
        self.silent_reads -= 1
        if "no-tier" not in self.faults and self.silent_reads < 0:
            rows |= self.sglang() if self.dialect == "sglang" else self.vllm()
        return "".join(
            f'{name}{{rank="{rank}"}} {self.neighbour if rank and self.neighbour else value}\n'
            for name, value in rows.items()
            for rank in (0, 1)
        )

    def sglang(self) -> dict[str, float]:
        """Counters appear when they first move, as prometheus-client's labelled ones do."""
        rows: dict[str, float] = {
            "sglang:hicache_host_total_tokens": self.host_tokens // (2 if "small" in self.faults else 1),
            "sglang:hicache_host_used_tokens": 5000 + self.copied,
        }
        if self.copied and self.version_has_counter:
            rows["sglang:hicache_backup_tokens_total"] = self.copied
        if self.copied and self.storage and "no-storage" not in self.faults:
            rows["sglang:backuped_tokens_total"] = self.copied
        if self.evicted:
            rows["sglang:load_back_tokens_total"] = self.evicted
        if self.prefetched:
            rows["sglang:prefetched_tokens_total"] = self.prefetched
        return rows

    def vllm(self) -> dict[str, float]:
        rows: dict[str, float] = {
            "vllm:kv_offload_store_bytes_total": 7.0 + self.copied * TOKEN_BYTES,
            "vllm:kv_offload_load_bytes_total": self.evicted * TOKEN_BYTES,
        }
        if self.storage:
            written = 0 if "no-storage" in self.faults else self.copied * TOKEN_BYTES
            rows["vllm:kv_offload_tiering_write_bytes_total"] = written
            rows["vllm:kv_offload_tiering_read_bytes_total"] = self.prefetched * TOKEN_BYTES
        return rows


@pytest.fixture(autouse=True)
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optistack_hicache.probe, "DEADLINE_S", 0.0)


@pytest.fixture(params=["sglang", "vllm"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def check(make_bench: Any, dialect: str) -> Check:
    def run(options: dict[str, Any] | None = None, **engine: Any) -> dict[str, CheckResult]:
        options = {"host_gib": 100, **(options or {})}
        plan = make_bench(backend=dialect).plan(**options)
        capacity = plan.stack.tier(2).capacity_bytes.value
        fake = FakeEngine(
            dialect=dialect,
            host_tokens=capacity // (4 * TOKEN_BYTES),
            storage="storage" in options,
            selective=options.get("write_policy") == "write_through_selective",
            **engine,
        )
        return {one.id: one for one in optistack_hicache.optistack_probe(plan=plan, endpoint=fake.endpoint())}

    return run


def test_a_copy_is_seen_beside_an_engine_that_has_copied_more(check: Check) -> None:
    assert check(neighbour=1e12)["hicache/host-stores"].status is Status.PASS
    assert check(neighbour=1e12, faults={"no-copies"})["hicache/host-stores"].status is Status.FAIL


def test_copies_are_proven_and_hits_are_not_yet(check: Check) -> None:
    results = check(FILE)
    assert results["hicache/host-stores"].status is Status.PASS
    assert results["hicache/storage-writes"].status is Status.PASS
    assert results["hicache/host-hits"].status is Status.UNPROVEN
    assert results["hicache/storage-hits"].status is Status.UNPROVEN
    assert "still on the device" in results["hicache/host-hits"].why


def test_hits_are_proven_once_they_have_happened(check: Check) -> None:
    results = check(FILE, evicted=64, prefetched=256)
    assert results["hicache/host-hits"].status is Status.PASS
    assert results["hicache/storage-hits"].status is Status.PASS


def test_the_amount_is_what_one_rank_says(check: Check, dialect: str) -> None:
    says = check()["hicache/host-stores"].engine_says
    assert says == ("1,000 tokens" if dialect == "sglang" else "2,048,000 bytes")


def test_without_a_storage_tier_nothing_is_said_of_it(check: Check) -> None:
    assert not [name for name in check() if "storage" in name]


def test_an_engine_without_the_tier_fails(check: Check) -> None:
    result = check(faults={"no-tier"})["hicache/host-stores"]
    assert (result.status, result.engine_says) == (Status.FAIL, "no host tier")


def test_counters_that_show_late_are_waited_for(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of vLLM 0.26 with a storage tier, which appear with the first copy."""
    monkeypatch.setattr(optistack_hicache.probe, "DEADLINE_S", 10.0)
    results = check(FILE, silent_reads=4)
    assert results["hicache/host-stores"].status is Status.PASS
    assert results["hicache/storage-writes"].status is Status.PASS


def test_an_idle_engine_is_made_to_publish_what_it_copied(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optistack_hicache.probe, "DEADLINE_S", 1.0)
    results = check(FILE, publishes_with_a_step=True)
    assert results["hicache/host-stores"].status is Status.PASS
    assert results["hicache/storage-writes"].status is Status.PASS


def test_a_tier_that_nothing_is_copied_to_fails(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optistack_hicache.probe, "DEADLINE_S", 1.0)
    assert check(faults={"no-copies"})["hicache/host-stores"].status is Status.FAIL


def test_storage_that_nothing_is_written_to_fails(check: Check) -> None:
    results = check(FILE, faults={"no-storage"})
    assert results["hicache/host-stores"].status is Status.PASS
    assert results["hicache/storage-writes"].status is Status.FAIL


def test_selective_copying_is_given_its_second_use(check: Check) -> None:
    options = {"write_policy": "write_through_selective"}
    assert check(options)["hicache/host-stores"].status is Status.PASS
    assert check(options, faults={"no-copies"})["hicache/host-stores"].status is Status.FAIL


def test_an_error_of_the_engine_fails_and_is_shown(check: Check) -> None:
    result = check(faults={"crash"})["hicache/host-stores"]
    assert result.status is Status.FAIL
    assert "cudaMemcpyBatchAsync" in result.why


def test_without_metrics_nothing_is_proven(check: Check) -> None:
    assert [one.status for one in check(faults={"blind"}).values()] == [Status.UNPROVEN]


def run(bench: Any, engine: FakeEngine, **options: Any) -> dict[str, CheckResult]:
    plan = bench.plan(host_gib=100, **options)
    return {one.id: one for one in optistack_hicache.optistack_probe(plan=plan, endpoint=engine.endpoint())}


def planned_tokens(bench: Any) -> int:
    return int(bench.plan(host_gib=100).stack.tier(2).capacity_bytes.value) // (4 * TOKEN_BYTES)


def test_sglangs_host_pool_is_compared_with_the_plan(bench: Any) -> None:
    tokens = planned_tokens(bench)
    assert run(bench, FakeEngine(host_tokens=tokens + 64))["hicache/host-tokens"].status is Status.PASS
    assert run(bench, FakeEngine(host_tokens=tokens, faults={"small"}))["hicache/host-tokens"].status is Status.FAIL


def test_an_sglang_without_the_backup_counter_is_judged_by_its_pool(bench: Any) -> None:
    engine = FakeEngine(host_tokens=planned_tokens(bench), version_has_counter=False)
    result = run(bench, engine)["hicache/host-stores"]
    assert result.status is Status.PASS
    assert "hicache_host_used_tokens +1000" in result.proof


def test_write_back_cannot_be_shown_by_a_prompt(bench: Any) -> None:
    engine = FakeEngine(host_tokens=planned_tokens(bench), faults={"no-copies"})
    result = run(bench, engine, write_policy="write_back")["hicache/host-stores"]
    assert result.status is Status.UNPROVEN
    assert "evicts" in result.why


def test_an_old_vllm_that_does_not_count_storage_proves_nothing(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optistack_hicache.probe, "DEADLINE_S", 600.0)  # and is not waited for
    results = run(make_bench(backend="vllm", version="0.26.0"), FakeEngine(dialect="vllm", evicted=64), **FILE)
    assert results["hicache/host-hits"].status is Status.PASS
    for name in ("hicache/storage-writes", "hicache/storage-hits"):
        assert results[name].status is Status.UNPROVEN
        assert results[name].engine_says == "nothing"
        assert "vllm 0.26.0 has no vllm:kv_offload_tiering" in results[name].why


def test_a_vllm_that_should_count_storage_and_does_not_proves_nothing(make_bench: Any) -> None:
    results = run(make_bench(backend="vllm"), FakeEngine(dialect="vllm"), **FILE)
    assert results["hicache/storage-writes"].status is Status.UNPROVEN


def test_lmcache_counts_elsewhere(make_bench: Any) -> None:
    results = run(make_bench(backend="vllm"), FakeEngine(dialect="vllm"), storage="lmcache")
    assert [one.status for one in results.values()] == [Status.UNPROVEN]
