"""A failure that a rule explains is named by it, and stays a failure."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from optistack_adapters.vllm import backend
from optistack_conformance import known
from optistack_conformance.engine import EngineInfo
from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.proxy import FaultyProxy
from optistack_conformance.faults.server import FaultyServer
from optistack_conformance.known import EXPLANATIONS, known_rule
from optistack_conformance.outcomes import Outcome
from optistack_conformance.runner import run_suite
from optistack_conformance.selection import Selection

SAMPLES = "lossless/samples-follow-the-models-distribution"


@pytest.fixture(autouse=True)
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vLLM adapter, whether or not this checkout is installed."""
    monkeypatch.setattr(known, "backend_names", lambda: ["vllm"])
    monkeypatch.setattr(known, "get_backend", lambda name: backend)


def drafting(version: str = "0.32.0", device: str | None = "cpu", *, speculative: bool = True) -> EngineInfo:
    return EngineInfo(name="vllm", version=version, model="m", speculative=speculative, device=device)


def test_every_explanation_names_a_rule_that_exists() -> None:
    rules = {rule.id for rule in backend.rules()}
    assert {one.rule for one in EXPLANATIONS} <= rules


def test_the_rule_is_named_where_it_holds_and_nowhere_else() -> None:
    assert known_rule(SAMPLES, drafting()).startswith("vllm-cpu-speculative-sampling: ")
    assert "which it does not say" in known_rule(SAMPLES, drafting(device=None))
    for other in (drafting("0.25.1"), drafting(device="cuda"), drafting(speculative=False)):
        assert known_rule(SAMPLES, other) == ""
    assert known_rule("lossless/greedy-tokens-are-the-models-own", drafting()) == ""


def test_the_report_names_it_and_the_verdict_is_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = SimpleNamespace(id="vllm-cpu-speculative-sampling", message="Known.", backends=("vllm",), versions="")
    monkeypatch.setattr(known, "get_backend", lambda name: SimpleNamespace(rules=lambda: [rule]))
    with FaultyServer() as server, FaultyProxy(server.url, Fault.SEED_IGNORED) as proxy:
        report = run_suite(Selection(endpoint=proxy.url, cases=("contract/seed-*",)))
    assert {one.known for one in report.results if one.outcome is Outcome.FAIL} == {
        "vllm-cpu-speculative-sampling (if this server runs on a CPU, which it does not say): Known."
    }
    assert report.exit_code == 1
