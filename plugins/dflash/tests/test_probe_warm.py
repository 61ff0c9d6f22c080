"""The prompt that is sent twice, and the verdict on its two runs; what engines make of it is in test_probe.py."""

from __future__ import annotations

import pytest

from optistack.verify.receipt import Status
from optistack_dflash.probe_counters import Drafting
from optistack_dflash.probe_warm import LINE_TOKENS, MAX_TOKENS, PAGES, Run, judge, prompt


@pytest.mark.parametrize(("page", "context"), [(1, None), (128, 4096), (256, 262_144), (64, 1024)])
def test_the_prompt_fills_pages_and_leaves_room_for_the_answer(page: int, context: int | None) -> None:
    lines = prompt(page, context).splitlines()
    assert context is None or len(lines) * LINE_TOKENS + MAX_TOKENS <= context
    assert context == 1024 or len(lines) * LINE_TOKENS // 2 >= PAGES * page
    assert prompt(page, context) != prompt(page, context)


def test_a_context_without_room_for_pages_gets_no_prompt() -> None:
    assert prompt(16, 256) == ""


def test_a_parting_answer_is_no_evidence_of_a_loss() -> None:
    cold, warm = (
        Run(text, 600, cached, Drafting(drafts, 7 * drafts, accepted, ""))
        for text, cached, drafts, accepted in (("yes, so it is", 0, 30, 120), ("no", 512, 60, 60))
    )
    assert judge(cold, warm).status is Status.UNPROVEN


@pytest.mark.parametrize(
    ("warm", "status"),
    [((44, 83), Status.UNPROVEN), ((44, 30), Status.FAIL), ((440, 830), Status.UNPROVEN), ((4400, 7500), Status.FAIL)],
)
def test_a_difference_that_chance_makes_is_no_failure(warm: tuple[float, float], status: Status) -> None:
    """The first is what an H200 gave for a stack that lost nothing."""
    cold = (41, 86) if warm[0] < 100 else (41 * warm[0] / 44, 86 * warm[0] / 44)
    runs = [
        Run(text="alike", prompt_tokens=756, cached_tokens=cached, drafting=Drafting(drafts, 7 * drafts, accepted, ""))
        for (drafts, accepted), cached in ((cold, 0), (warm, 736))
    ]
    assert judge(*runs).status is status
