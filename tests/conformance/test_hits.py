"""Cases about prefix and tier hits on servers where no hit happened, or nobody can tell: they do not pass unseen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from optistack.verify.metrics import Metrics, parse_metrics
from optistack_conformance.engine import EngineInfo, read_engine, tier_hits
from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.proxy import FaultyProxy
from optistack_conformance.faults.server import FaultyServer
from optistack_conformance.faults.tamper import Tamper
from optistack_conformance.outcomes import InconclusiveError, Outcome
from optistack_conformance.report import Report
from optistack_conformance.runner import run_suite
from optistack_conformance.selection import Selection
from optistack_conformance.sequences import Run, counted
from optistack_conformance.statistics.acceptance import Drafts
from optistack_conformance.tiers.lossless import test_speed_ups
from optistack_conformance.tiers.lossless.hits import check_kept

HITS = (
    "lossless/kl-of-prefix-hit",
    "lossless/kl-of-sessions-that-begin-alike",
    "lossless/acceptance-length-survives-a-prefix-hit",
)
INFO = 'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{caching}",engine="{engine}"}} 1\n'


def outcomes(report: Report) -> dict[str, tuple[Outcome, str]]:
    return {one.id: (one.outcome, one.why) for one in report.results}


def page(text: str) -> Any:
    """An endpoint whose metrics page is ``text``."""
    return SimpleNamespace(url="http://engine", metrics=lambda: parse_metrics(text) if text else Metrics(()))


def test_a_hit_that_did_not_happen_is_not_judged() -> None:
    with FaultyServer(seed=1, device_pages=0, host_tier=False) as server:
        found = outcomes(run_suite(Selection(endpoint=server.url, cases=HITS)))
    assert {outcome for outcome, _ in found.values()} == {Outcome.INCONCLUSIVE}
    assert all("no token of a prompt came from the cache" in why for _, why in found.values())


def test_a_prompt_that_was_just_served_and_is_not_cached_fails_still() -> None:
    with FaultyServer(seed=1, device_pages=0, host_tier=False) as server:
        report = run_suite(Selection(endpoint=server.url, cases=("lossless/cached-tokens-of-a-repeated-prompt",)))
    assert [one.outcome for one in report.results] == [Outcome.FAIL]


class NoReport(Tamper):
    """Answers without a report of cached tokens."""

    def answer(self, path: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        (answer.get("usage") or {}).pop("prompt_tokens_details", None)
        return answer


def test_a_server_that_does_not_say_what_was_cached_is_judged_by_what_it_answers() -> None:
    with FaultyServer(seed=1) as server, FaultyProxy(server.url, tamper=NoReport(Fault.NONE)) as proxy:
        found = outcomes(run_suite(Selection(endpoint=proxy.url, cases=HITS)))
    assert {outcome for outcome, _ in found.values()} == {Outcome.PASS}


def test_a_second_run_on_a_small_device_finds_its_prompts_as_new_as_the_first() -> None:
    cases = ("lossless/kl-of-tier-hit", "lossless/new-prompts-*")
    with FaultyServer(seed=1, device_pages=200, host_tier=False) as server:
        for _ in range(2):
            found = outcomes(run_suite(Selection(endpoint=server.url, cases=cases)))
            assert found["lossless/new-prompts-share-no-prefix"][0] is Outcome.PASS


@pytest.mark.parametrize(("caching", "kept"), [("True", True), ("False", False), ("None", None)])
def test_the_engine_says_whether_it_keeps_prefixes_and_how_many_share_the_port(caching: str, kept: bool | None) -> None:
    pages = {"/version": {"version": "0.33.0"}}
    endpoint = page("".join(INFO.format(caching=caching, engine=number) for number in range(2)))
    endpoint.get_json, endpoint.model, endpoint.listed = pages.get, lambda: "m", dict
    engine = read_engine(endpoint)
    assert (engine.prefix_cache, engine.engines) == (kept, 2)
    if kept is False:
        with pytest.raises(pytest.skip.Exception, match="switched off"):
            check_kept(engine)


@pytest.mark.parametrize("groups", [{"dp_size": 4}, {"dp_size": 1, "attn_dp_size": 4}], ids=["0.5.17", "0.5.23"])
def test_sglang_says_it_too(groups: dict[str, int]) -> None:
    pages = {"/server_info": {"version": "0.5.23", "disable_radix_cache": True, **groups}}
    endpoint = page("")
    endpoint.get_json, endpoint.model, endpoint.listed = pages.get, lambda: "m", dict
    engine = read_engine(endpoint)
    assert (engine.prefix_cache, engine.engines) == (False, 4)


@pytest.mark.parametrize("storage", ["storage", "storage_file"], ids=["0.5.23", "0.5.17"])
def test_tokens_from_a_tier_are_counted_under_each_version_s_name(storage: str) -> None:
    counts = {"device": 50, "host": 3, storage: 4}
    lines = [f'sglang:cached_tokens_total{{cache_source="{source}"}} {count}' for source, count in counts.items()]
    assert tier_hits(page("\n".join([*lines, ""]))) == 7
    assert tier_hits(page("vllm:external_prefix_cache_hits_total 9\n")) == 9


def test_tokens_from_a_tier_that_nobody_counts_are_no_proof_that_none_came() -> None:
    assert tier_hits(page("sglang:num_running_reqs 0\n")) == 0, "its counter appears when it moves"
    with pytest.raises(InconclusiveError, match="does not count"):
        tier_hits(page(""))


def test_a_count_is_read_when_it_stands_still() -> None:
    readings = iter([0, 5, 9, 9, 9])
    late = page("")
    late.metrics = lambda: parse_metrics(f"vllm:external_prefix_cache_hits_total {next(readings)}\n")
    assert tier_hits(late) == 9


def test_without_a_report_hits_and_drafts_are_what_the_counters_moved_by() -> None:
    counts = {"prefix_cache_hits": 100, "spec_decode_num_drafts": 7, "spec_decode_num_accepted_tokens": 9}
    endpoint = page("")
    endpoint.metrics = lambda: parse_metrics("".join(f"vllm:{name}_total {now}\n" for name, now in counts.items()))

    def work() -> list[Any]:
        counts.update(prefix_cache_hits=164, spec_decode_num_drafts=9, spec_decode_num_accepted_tokens=14)
        return []

    run = counted(endpoint, work)
    assert (run.cached_tokens, run.drafts) == (64, Drafts(2, 5))
    assert counted(endpoint, list).cached_tokens == 0
    assert counted(page(""), list) == Run([])


@pytest.mark.parametrize(
    ("cold", "hit", "raised", "why"),
    [
        (Run([], Drafts(9, 0)), Run([], Drafts(9, 0), 64), InconclusiveError, "no draft was accepted, cold or warm"),
        (Run([], Drafts(9, 9)), Run([], Drafts(9, 9), 0), InconclusiveError, "no hit to judge"),
        (Run([], Drafts(9, 9)), Run([], None, 64), pytest.fail.Exception, "no draft on a cached prefix"),
        (Run([]), Run([]), pytest.skip.Exception, "counts no drafts"),
    ],
    ids=["untrained", "no-hit", "stops-drafting", "no-drafts"],
)
def test_drafts_on_a_cached_prefix_are_judged_where_there_are_both(
    cold: Run, hit: Run, raised: type[BaseException], why: str
) -> None:
    states = {"cold": cold, "hit": hit}
    with pytest.raises(raised, match=why):
        test_speed_ups.test_acceptance_length_survives_a_prefix_hit(
            states, EngineInfo("vllm", "0", "m"), cast(Any, None)
        )


@pytest.mark.parametrize(
    ("metrics", "raised"), [(True, pytest.fail.Exception), (False, InconclusiveError)], ids=["counts", "cannot-say"]
)
def test_an_expected_acceptance_length_needs_drafts(metrics: bool, raised: type[BaseException]) -> None:
    engine = EngineInfo("vllm", "0", "m", metrics=metrics)
    selection = Selection(endpoint="http://engine", acceptance_reference=3.0)
    with pytest.raises(raised, match="no draft"):
        test_speed_ups.test_acceptance_length_is_that_of_the_reference(Run([]), engine, selection, cast(Any, None))


@pytest.mark.parametrize(
    ("expected", "outcome"), [(True, Outcome.INCONCLUSIVE), (False, Outcome.SKIPPED)], ids=["expected", "not-expected"]
)
def test_a_tier_that_nobody_can_see_is_a_doubt_only_where_one_is_expected(expected: bool, outcome: Outcome) -> None:
    cases = ("lossless/kl-of-tier-hit",)
    with FaultyServer(seed=1) as server, FaultyProxy(server.url, hidden=("/metrics",)) as proxy:
        report = run_suite(Selection(endpoint=proxy.url, cases=cases, tier_expected=expected))
    assert [one.outcome for one in report.results] == [outcome]
