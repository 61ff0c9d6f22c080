"""Sessions that do not leak: passed only where it was seen that repeats were cached and new sessions were not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer
from optistack_conformance.engine import EngineInfo
from optistack_conformance.sequences import Run
from optistack_routing.conformance import SESSIONS, sessions_do_not_leak

PAGE = 64
TOLD = 2 * PAGE


def run(told: int | None, counted: float | None = None) -> Run:
    """Each answer tells ``told`` cached tokens; without, the counters moved by ``counted``."""
    one = SimpleNamespace(decoded=SimpleNamespace(cached_tokens=told))
    return Run(cast(Any, [one] * SESSIONS), None, counted if told is None else told * SESSIONS)


def judged(*found: Run, kept: bool = True, **engine: Any) -> Answer:
    """The case on an engine that answers as ``found``, and then so again."""
    runs = [*found, *found]
    bench = SimpleNamespace(
        engine=EngineInfo("vllm", "0", "m", **{"page_tokens": PAGE, **engine}),
        prompts=lambda number, name: [(0,) * 200] * number,
        run=lambda prompts, concurrency: runs.pop(0),
        margin=lambda *runs: SimpleNamespace(passed=kept, describe=lambda: "every token"),
    )
    return sessions_do_not_leak(cast(Any, bench))


def test_repeats_from_the_cache_and_new_ones_not_pass() -> None:
    assert judged(run(0), run(TOLD)).status is Status.PASS
    assert judged(run(None, 0), run(None, TOLD * SESSIONS)).status is Status.PASS


@pytest.mark.parametrize(
    ("fresh", "again", "why"),
    [
        (run(None), run(None), "does not say"),
        (run(0), run(0), "0 tokens of the repeated"),
        (run(None, 0), run(None, 0), "0 tokens of the repeated"),
        (run(None, 500), run(None, 500 + TOLD * SESSIONS), "may be others'"),
    ],
    ids=["unreported", "no-hit", "no-hit-counted", "other-traffic"],
)
def test_what_nobody_saw_is_unproven(fresh: Run, again: Run, why: str) -> None:
    answer = judged(fresh, again)
    assert (answer.status, why in answer.why) == (Status.UNPROVEN, True), answer


def test_without_prefix_caching_nothing_can_leak_and_nothing_is_shown() -> None:
    assert judged(run(0), run(0), prefix_cache=False).status is Status.UNPROVEN


def test_a_new_session_from_the_cache_fails_and_so_does_another_sessions_answer() -> None:
    assert judged(run(PAGE), run(TOLD)).status is Status.FAIL
    assert judged(run(0), run(0), kept=False).status is Status.FAIL
    assert judged(run(None), run(None), kept=False).status is Status.FAIL


def test_a_page_in_common_with_an_older_text_is_a_leak_when_it_happens_again() -> None:
    assert judged(run(PAGE), run(TOLD), run(0), run(TOLD)).status is Status.PASS
    assert judged(run(PAGE), run(TOLD), run(PAGE), run(TOLD)).status is Status.FAIL
    assert judged(run(2 * PAGE), run(TOLD), run(0), run(TOLD)).status is Status.FAIL


def test_a_few_first_tokens_in_common_are_no_leak_where_a_page_is_one_token() -> None:
    assert judged(run(3), run(50), page_tokens=1).status is Status.PASS
    assert judged(run(16), run(50), page_tokens=1).status is Status.FAIL
