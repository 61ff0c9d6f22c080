"""The probes against honest engines and faulty ones."""

from __future__ import annotations

from typing import Any

import pytest

import optistack_routing
from optistack.verify.receipt import CheckResult, Status
from optistack_routing import probe


def check(world: Any, engine: Any) -> CheckResult:
    with engine.endpoint() as endpoint:
        results = optistack_routing.optistack_probe(plan=world.plan(), endpoint=endpoint)
    (cached,) = (result for result in results if result.id == "routing/prefix-cache")
    return cached


def test_what_only_a_router_can_prove_is_unproven(world: Any, engine: Any) -> None:
    with engine().endpoint() as endpoint:
        results = optistack_routing.optistack_probe(plan=world.plan(), endpoint=endpoint)
    unproven = {result.id: result for result in results if result.id.startswith("routing.")}
    assert set(unproven) == {
        f"routing.{name}"
        for name in (
            "policy",
            "session_header",
            "target_concurrency",
            "max_homes",
            "overload_margin",
            "session_idle_s",
        )
    }
    assert all(result.status is Status.UNPROVEN and "no router" in result.proof for result in unproven.values())
    assert unproven["routing.policy"].asked == "kv-aware"


@pytest.mark.parametrize("flavour", ["vllm", "sglang"])
@pytest.mark.parametrize("page", [1, 16, 64, 128, 256])
def test_an_engine_that_keeps_prefixes_passes(world: Any, engine: Any, flavour: str, page: int) -> None:
    result = check(world.by(flavour), engine(flavour=flavour, page=page))
    assert result.status is Status.PASS
    assert "0 the first time" in result.engine_says


def test_the_measured_figures_are_within_the_bound(world: Any) -> None:
    """vLLM 0.32.0, 1,193 tokens, pages of 128: 1,152 cached, with dflash 1,024."""
    from optistack_routing.prefix import pages_left_out

    old = world.by("vllm", "0.32.0")
    assert 1_193 - 128 * pages_left_out(old.plan()) <= 1_152
    assert 1_193 - 128 * pages_left_out(old.drafting("dflash").plan()) <= 1_024
    assert 1_193 - 128 * pages_left_out(old.plan()) > 1_024


def test_an_engine_without_prefix_caching_fails(world: Any, engine: Any) -> None:
    result = check(world, engine(caches=False))
    assert result.status is Status.FAIL
    assert result.engine_says.startswith("0 of ")


def test_an_engine_that_loses_a_page_too_many_fails(world: Any, engine: Any) -> None:
    assert check(world, engine(dropped=2)).status is Status.FAIL


def test_an_engine_that_reports_hits_for_new_prompts_fails(world: Any, engine: Any) -> None:
    result = check(world, engine(claims=100_000))
    assert (result.status, "never seen" in result.why) == (Status.FAIL, True)


@pytest.mark.parametrize(
    ("backend", "version", "method", "status"),
    [
        ("vllm", "0.32.0", "dflash", Status.PASS),
        ("vllm", "0.33.0", "dflash", Status.FAIL),
        ("vllm", "0.33.0", "eagle3", Status.PASS),
        ("vllm", "0.32.0", "ngram", Status.FAIL),
        ("sglang", "0.5.23", "eagle3", Status.PASS),
        ("sglang", "0.5.23", "dflash", Status.FAIL),
    ],
)
def test_a_dropped_page_is_forgiven_where_the_engine_is_known_to_drop_one(
    world: Any, engine: Any, backend: str, version: str, method: str, status: Status
) -> None:
    plan = world.by(backend, version).drafting(method)
    assert check(plan, engine(flavour=backend, dropped=1)).status is status


def test_each_attention_rank_has_a_cache_of_its_own(world: Any, engine: Any) -> None:
    spread = world.spread(tensor=4, attention_data=4)
    assert check(spread, engine(ranks=4)).status is Status.PASS
    assert check(spread, engine(ranks=4, caches=False)).status is Status.FAIL


def test_an_engine_that_does_not_report_is_not_proven(world: Any, engine: Any) -> None:
    result = check(world, engine(reports=False))
    assert (result.status, "cache report" in result.why) == (Status.UNPROVEN, True)


def test_an_engine_that_neither_reports_nor_counts_is_not_proven(
    world: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "DEADLINE_S", 0.2)
    assert check(world, engine(reports=False, counts=False)).status is Status.UNPROVEN


def test_a_counter_that_moves_late_is_waited_for(world: Any, engine: Any) -> None:
    assert check(world, engine(reports=False, late=3)).status is Status.UNPROVEN


def test_a_counter_that_stands_still_is_proof_enough_against_it(
    world: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "DEADLINE_S", 0.2)
    assert check(world, engine(reports=False, caches=False)).status is Status.FAIL


def test_an_engine_that_answers_with_an_error_fails_with_its_words(world: Any, engine: Any) -> None:
    result = check(world, engine(broken=True))
    assert (result.status, "out of memory" in result.proof) == (Status.FAIL, True)


def test_the_plans_page_counts_where_the_engine_says_none(world: Any, engine: Any) -> None:
    assert check(world, engine(says_page=False)).status is Status.UNPROVEN
    assert check(world.paging(128), engine(says_page=False)).status is Status.PASS
    sglang = world.by("sglang").paging(128)
    assert check(sglang, engine(flavour="sglang", says_page=False)).status is Status.PASS


def test_nothing_is_promised_when_the_stack_file_switches_prefix_caching_off(world: Any, engine: Any) -> None:
    silent = engine()
    assert check(world.serving(prefix_caching=False), silent).status is Status.UNPROVEN
    assert silent.prompts == []


def test_a_context_too_short_for_the_pages_proves_nothing(world: Any, engine: Any) -> None:
    assert check(world.serving(context_tokens=512), engine(page=128)).status is Status.UNPROVEN


def test_prompts_differ_between_runs_from_the_first_page_on(world: Any, engine: Any) -> None:
    running = engine()
    assert [check(world, running).status for _ in range(3)] == [Status.PASS] * 3
    assert len({prompt[:40] for prompt in running.prompts}) == 3
