"""Conformance cases of the built-in plugins: clean servers pass, each fault fails the case that is for it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from optistack.cases import ConformanceCase
from optistack.errors import CheckFailedError
from optistack.host import Host
from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer, Bench, bench_case
from optistack_conformance.client import Client
from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.proxy import FaultyProxy
from optistack_conformance.faults.server import FaultyServer
from optistack_conformance.faults.tamper import Tamper

PLUGINS = ("dflash", "hicache", "kv-fp8", "quant-nvfp4", "routing")

SEEN_BY = {
    "dflash/tokens-are-the-targets": (Fault.WRONG_BONUS, Fault.STALE_PREFIX),
    "dflash/drafts-survive-a-hit": (Fault.COLD_DRAFTS,),
    "hicache/tier-hit": (Fault.CORRUPT_TIER,),
    "kv-fp8/long-context-retrieval": (Fault.LOST_NEEDLE,),
    "quant-nvfp4/shapes-agree": (Fault.BATCH_KERNEL,),
    "routing/sessions-do-not-leak": (Fault.STALE_PREFIX,),
    "routing/prefix-stays": (),
}


@pytest.fixture(scope="module")
def cases() -> dict[str, ConformanceCase]:
    host, found = Host(), {}
    for name in PLUGINS:
        plugin = host.register(import_module(f"optistack_{name.replace('-', '_')}"), name=name)
        found |= {case.id: case for case in host.call_many(plugin, "optistack_conformance", ConformanceCase)}
    return found


@pytest.fixture(autouse=True)
def shorter_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy's context would have needles in 8,192 tokens, which it is slow at."""
    monkeypatch.setattr("optistack_kv_fp8.conformance.LONG_TOKENS", (1_024,))


@pytest.fixture(scope="module")
def clean() -> Iterator[Client]:
    with FaultyServer(seed=1) as server, Client(server.url) as client:
        yield client


def test_every_built_in_plugin_brings_cases(cases: dict[str, ConformanceCase]) -> None:
    assert set(cases) == set(SEEN_BY)
    assert {case_id.partition("/")[0] for case_id in cases} == set(PLUGINS)


@pytest.mark.parametrize("case_id", SEEN_BY)
def test_a_clean_server_passes(case_id: str, cases: dict[str, ConformanceCase], clean: Client) -> None:
    result = cases[case_id].run(clean)
    assert result.status is Status.PASS, f"{result.engine_says} {result.why}"
    assert result.id == case_id


@pytest.mark.parametrize(("case_id", "fault"), [(case, fault) for case, faults in SEEN_BY.items() for fault in faults])
def test_the_fault_is_seen(case_id: str, fault: Fault, cases: dict[str, ConformanceCase]) -> None:
    with FaultyServer(fault, seed=1) as server, Client(server.url) as client:
        result = cases[case_id].run(client)
    assert result.status is Status.FAIL, f"{result.engine_says} {result.why}"


class TwoReplicas(Tamper):
    """A router without affinity: every other request reaches a replica that has not seen the session."""

    def answer(self, path: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        self.number = getattr(self, "number", 0) + 1
        if self.number % 2 and "usage" in answer:
            answer["usage"]["prompt_tokens_details"]["cached_tokens"] = 0
        return answer


def test_a_router_that_forgets_its_sessions_is_seen(cases: dict[str, ConformanceCase]) -> None:
    router = TwoReplicas(Fault.NONE)
    with FaultyServer(seed=1) as server, FaultyProxy(server.url, tamper=router) as proxy, Client(proxy.url) as client:
        result = cases["routing/prefix-stays"].run(client)
    assert result.status is Status.FAIL
    assert "different caches" in result.why


def test_a_server_that_cannot_score_is_unproven_and_one_that_breaks_fails() -> None:
    def work(bench: Bench) -> Answer:
        raise CheckFailedError("it broke")

    case = bench_case("mine/works", tier=1, summary="It works.", asked="to work", work=work)
    with FaultyServer() as server:
        with Client(server.url) as client:
            assert (case.run(client).status, case.run(client).why) == (Status.FAIL, "it broke")
        with FaultyProxy(server.url, hidden=("/version",)) as proxy, Endpoint(proxy.url) as endpoint:
            assert case.run(endpoint).status is Status.UNPROVEN
