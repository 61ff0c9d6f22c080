"""The suite against servers that are wrong on purpose: each fault fails the lowest tier that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from optistack.errors import InputError
from optistack_conformance.client import Client
from optistack_conformance.faults.catalog import EXPECTED, Fault
from optistack_conformance.faults.proxy import FaultyProxy
from optistack_conformance.faults.rates import alarms, seen
from optistack_conformance.faults.server import FaultyServer
from optistack_conformance.outcomes import Outcome
from optistack_conformance.reference import measure_reference, save_reference
from optistack_conformance.report import Report
from optistack_conformance.runner import run_suite
from optistack_conformance.selection import Selection
from optistack_conformance.statistics.rates import Rate


@pytest.fixture(scope="module")
def baseline_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A clean server's measurements, recorded once."""
    path = tmp_path_factory.mktemp("baseline") / "baseline.json"
    with FaultyServer(seed=2) as server, Client(server.url) as client:
        save_reference(measure_reference(client, Selection(endpoint=server.url)), path)
    yield str(path)


def failed(report: Report) -> list[str]:
    return [result.id for result in report.results if result.outcome is Outcome.FAIL]


def test_a_clean_server_passes_everything(baseline_file: str, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    with FaultyServer(seed=1) as server:
        report = run_suite(Selection(endpoint=server.url, baseline_file=baseline_file), junit=junit)
    assert failed(report) == []
    assert report.tiers == {0: Outcome.PASS, 1: Outcome.PASS}
    assert report.exit_code == 0
    assert "lossless/kl-against-baseline" in [result.id for result in report.results if result.outcome is Outcome.PASS]
    assert 'name="KL (k3)"' in junit.read_text(), "JUnit has the figures"


@contextmanager
def serving(fault: Fault) -> Iterator[str]:
    """The URL of a server with ``fault``, by itself or by a proxy in front of it."""
    proxied = EXPECTED[fault].proxied
    with FaultyServer(Fault.NONE if proxied else fault, seed=1) as server:
        if not proxied:
            yield server.url
            return
        with FaultyProxy(server.url, fault) as proxy:
            yield proxy.url


@pytest.mark.parametrize("fault", EXPECTED, ids=str)
def test_the_lowest_tier_sees_the_fault(fault: Fault, baseline_file: str) -> None:
    expected = EXPECTED[fault]
    settings = {"baseline_file": baseline_file} if "baseline" in expected.needs else {}
    if expected.tier == 2:
        settings["lossy"] = "fp8-kv"
    with serving(fault) as url:
        selection = {"endpoint": url, "profile": expected.profile, "tiers": (expected.tier,), **settings}
        report = run_suite(Selection.model_validate(selection))
    assert report.verdict_of(expected.tier) is Outcome.FAIL, f"{expected.what}: {report.tiers}"
    assert expected.case in failed(report)
    assert report.exit_code == 1


def test_rates_count_what_is_seen_and_what_is_not() -> None:
    assert seen(Fault.DROPPED_TOKEN, range(2)) == Rate(2, 2)
    assert alarms(Fault.DROPPED_TOKEN, range(2)) == Rate(0, 2)
    assert seen(Fault.LEAKED_STOP, range(1)) == Rate(1, 1), "one that a proxy does"


def test_a_lossy_candidate_that_loses_nothing_is_inconclusive_when_the_suite_is_small(baseline_file: str) -> None:
    with FaultyServer(seed=1) as server:
        selection = Selection(endpoint=server.url, baseline_file=baseline_file, lossy="fp8-kv", tiers=(2,))
        report = run_suite(selection)
    assert report.exit_code == 4
    doubts = [result for result in report.results if result.outcome is Outcome.INCONCLUSIVE]
    assert all("cannot tell" in result.why for result in doubts)
    assert all(any(figure.name == "items that would tell" for figure in result.figures) for result in doubts)


def test_a_recorded_baseline_of_something_else_is_refused(baseline_file: str) -> None:
    with FaultyServer(seed=1) as server:
        with pytest.raises(InputError, match="another seed"):
            run_suite(Selection(endpoint=server.url, baseline_file=baseline_file, seed=5))
        with pytest.raises(InputError, match="There is no recorded baseline"):
            run_suite(Selection(endpoint=server.url, baseline_file="/nowhere/baseline.json"))


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(InputError, match="No engine answers"):
        run_suite(Selection(endpoint="http://127.0.0.1:1"))
