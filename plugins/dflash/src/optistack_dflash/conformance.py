"""What drafting promises in any composition: the target's own tokens, and drafts as good on a cached prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer, Bench, bench_case
from optistack_conformance.outcomes import Outcome
from optistack_conformance.statistics.acceptance import KEPT, judge_acceptance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optistack.cases import ConformanceCase

PROMPTS = 8
STATUS = {Outcome.PASS: Status.PASS, Outcome.FAIL: Status.FAIL, Outcome.INCONCLUSIVE: Status.UNPROVEN}


def greedy_margin(bench: Bench) -> Answer:
    """Greedy tokens under drafting, on fresh and on cached prefixes, alone and in a batch."""
    prompts = bench.prompts(PROMPTS, "dflash/tokens-are-the-targets")
    verdict = bench.margin(bench.run(prompts), bench.run(prompts))
    why = "drafting changed the answer by more than rounding does"
    return Answer.of(verdict.passed, verdict.describe(), proof="the same tokens scored in one prefill", why=why)


def warm_acceptance(bench: Bench) -> Answer:
    """A drafter that reads the target's hidden states has none for a prefix that came from the cache, unless they were
    kept or are computed again: its drafts are then poor for the whole request, and nothing else shows it."""
    prompts = bench.prompts(PROMPTS, "dflash/drafts-survive-a-hit")
    cold, warm = bench.run(prompts).drafts, bench.run(prompts).drafts
    if cold is None or warm is None:
        return Answer(Status.FAIL, "no draft at all", why="the engine answered without drafting, or counts no drafts")
    if not any((cold.accepted, warm.accepted)):
        idle = "nothing was accepted, cold or warm: the draft is untrained or was trained for another target"
        return Answer(Status.UNPROVEN, f"acceptance length 1.00 over {cold.number + warm.number:g} drafts", why=idle)
    verdict = judge_acceptance(warm, cold)
    says = f"{warm.length:.2f} warm, {cold.length:.2f} cold, over {warm.number:g} and {cold.number:g} drafts"
    why = (
        "" if verdict.outcome is Outcome.PASS else f"{verdict.share:.2f} of the cold length (p = {verdict.p_value:.2g})"
    )
    return Answer(STATUS[verdict.outcome], says, "the engine's own counts of drafts and accepted tokens", why)


CASES: Sequence[ConformanceCase] = (
    bench_case(
        "dflash/tokens-are-the-targets",
        tier=1,
        summary="Drafted greedy tokens are the target's own, with and without a cached prefix.",
        asked="every greedy token within rounding of the target's best",
        work=greedy_margin,
    ),
    bench_case(
        "dflash/drafts-survive-a-hit",
        tier=1,
        summary="Drafts are accepted on a cached prefix as on a fresh one.",
        asked=f"at least {KEPT:g} of the cold acceptance length",
        work=warm_acceptance,
    ),
)
