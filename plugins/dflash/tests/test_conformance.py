"""The plugin's own cases on what an engine may count: no hit and no counter is no verdict, no draft is one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer
from optistack_conformance.engine import EngineInfo
from optistack_conformance.sequences import Run
from optistack_conformance.statistics.acceptance import Drafts
from optistack_dflash.conformance import PROMPTS, greedy_margin, warm_acceptance

PAGE = 64
HIT = 2 * PAGE * PROMPTS
GOOD, POOR = Drafts(400, 1200), Drafts(800, 400)


@dataclass
class Verdict:
    passed: bool = True

    def describe(self) -> str:
        return "every token"


@dataclass
class FakeBench:
    """Gives ``runs`` one after the other."""

    runs: list[Run]
    engine: EngineInfo = field(
        default_factory=lambda: EngineInfo("vllm", "0", "m", page_tokens=PAGE, speculative=True, metrics=True)
    )
    verdict: Verdict = field(default_factory=Verdict)

    def prompts(self, number: int, name: str) -> list[tuple[int, ...]]:
        return [(0,)] * number

    def run(self, prompts: list[tuple[int, ...]]) -> Run:
        return self.runs.pop(0)

    def margin(self, *runs: Run) -> Verdict:
        return self.verdict


def run(drafts: Drafts | None, cached: float | None) -> Run:
    return Run(cast(Any, [None] * PROMPTS), drafts, cached)


def survives(cold: Run, warm: Run, **engine: Any) -> Answer:
    bench = FakeBench([cold, warm])
    if engine:
        bench.engine = EngineInfo("vllm", "0", "m", **engine)
    return warm_acceptance(cast(Any, bench))


def test_drafts_as_good_on_a_hit_pass_and_poor_ones_fail() -> None:
    assert survives(run(GOOD, 0), run(GOOD, HIT)).status is Status.PASS
    assert survives(run(GOOD, 0), run(POOR, HIT)).status is Status.FAIL
    assert survives(run(GOOD, 0), run(None, HIT)).status is Status.FAIL
    assert survives(run(GOOD, 0), run(POOR, None)).status is Status.FAIL


@pytest.mark.parametrize(
    ("cold", "warm", "why"), [(0, 0, "0 tokens"), (0, PAGE, "64 tokens"), (HIT, HIT, "0 tokens"), (0, None, "not say")]
)
def test_what_was_no_hit_does_not_pass(cold: float | None, warm: float | None, why: str) -> None:
    answer = survives(run(GOOD, cold), run(GOOD, warm))
    assert (answer.status, why in answer.why) == (Status.UNPROVEN, True), answer
    margin = greedy_margin(cast(Any, FakeBench([run(GOOD, cold), run(GOOD, warm)])))
    assert (margin.status, why in margin.why) == (Status.UNPROVEN, True), margin


def test_without_prefix_caching_there_is_no_hit_but_tokens_are_judged() -> None:
    off = {"page_tokens": PAGE, "prefix_cache": False}
    assert survives(run(GOOD, 0), run(GOOD, 0), **off).status is Status.UNPROVEN
    bench = FakeBench([run(GOOD, 0), run(GOOD, 0)], EngineInfo("vllm", "0", "m", prefix_cache=False))
    assert greedy_margin(cast(Any, bench)).status is Status.PASS


@pytest.mark.parametrize(
    ("engine", "status"),
    [
        ({"speculative": True, "metrics": True}, Status.FAIL),  # counters that stay at zero
        ({"page_tokens": PAGE, "metrics": True}, Status.FAIL),  # vLLM's own page, of an engine that does not draft
        ({"metrics": True}, Status.UNPROVEN),  # another server's page
        ({"metrics": False}, Status.UNPROVEN),
    ],
)
def test_no_draft_fails_where_drafts_would_be_counted(engine: dict[str, Any], status: Status) -> None:
    assert survives(run(None, 0), run(None, HIT), **engine).status is status


def test_tokens_that_are_not_the_targets_fail_hit_or_no_hit() -> None:
    for cached in (0, HIT):
        bench = FakeBench([run(GOOD, 0), run(GOOD, cached)], verdict=Verdict(passed=False))
        assert greedy_margin(cast(Any, bench)).status is Status.FAIL


def test_tokens_without_a_draft_are_no_proof_of_drafting() -> None:
    answer = greedy_margin(cast(Any, FakeBench([run(None, 0), run(None, HIT)])))
    assert (answer.status, "no draft" in answer.why) == (Status.UNPROVEN, True)
