"""What drafting promises in any composition: the target's own tokens, and drafts as good on a cached prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer, Bench, bench_case
from optistack_conformance.outcomes import Outcome
from optistack_conformance.sequences import NO_PAGE_TOKENS, Run
from optistack_conformance.statistics.acceptance import KEPT, judge_acceptance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optistack.cases import ConformanceCase

PROMPTS = 8
LEAST_PAGE_TOKENS = 16
"""Pages of the prompts are at least as long, however short the engine's are."""

STATUS = {Outcome.PASS: Status.PASS, Outcome.FAIL: Status.FAIL, Outcome.INCONCLUSIVE: Status.UNPROVEN}


def greedy_margin(bench: Bench) -> Answer:
    """Greedy tokens under drafting, on fresh and on cached prefixes, alone and in a batch."""
    prompts = bench.prompts(PROMPTS, "dflash/tokens-are-the-targets")
    cold, warm = bench.run(prompts), bench.run(prompts)
    verdict = bench.margin(cold, warm)
    says, proof = verdict.describe(), "the same tokens scored in one prefill"
    if not verdict.passed:
        return Answer(Status.FAIL, says, proof, "drafting changed the answer by more than rounding does")
    if cold.drafts is None or warm.drafts is None:
        return Answer(Status.UNPROVEN, says, proof, "no draft was seen, so whose tokens these are is not")
    if bench.engine.prefix_cache is False:
        return Answer(Status.PASS, f"{says}; no prefix is ever cached", proof)
    unseen = _why_no_hit(bench, cold, warm)
    return Answer(Status.UNPROVEN if unseen else Status.PASS, says, proof, unseen)


def warm_acceptance(bench: Bench) -> Answer:
    """A drafter that reads the target's hidden states has none for a prefix that came from the cache, unless they were
    kept or are computed again: its drafts are then poor for the whole request, and nothing else shows it."""
    prompts = bench.prompts(PROMPTS, "dflash/drafts-survive-a-hit")
    fresh, again = bench.run(prompts), bench.run(prompts)
    cold, warm = fresh.drafts, again.drafts
    if cold is None:
        return _undrafted(bench)
    if warm is None:
        return Answer(Status.FAIL, "no draft", why=f"nothing is drafted the second time, {cold.number:g} the first")
    if not any((cold.accepted, warm.accepted)):
        idle = "nothing was accepted, cold or warm: the draft is untrained or was trained for another target"
        return Answer(Status.UNPROVEN, f"acceptance length 1.00 over {cold.number + warm.number:g} drafts", why=idle)
    verdict = judge_acceptance(warm, cold)
    says = f"{warm.length:.2f} warm, {cold.length:.2f} cold, over {warm.number:g} and {cold.number:g} drafts"
    proof = "the engine's own counts of drafts and accepted tokens"
    if verdict.outcome is not Outcome.PASS:
        why = f"{verdict.share:.2f} of the cold length (p = {verdict.p_value:.2g})"
        return Answer(STATUS[verdict.outcome], says, proof, why)
    unseen = _why_no_hit(bench, fresh, again)
    return Answer(Status.UNPROVEN if unseen else Status.PASS, says, proof, unseen)


def _undrafted(bench: Bench) -> Answer:
    """No draft was counted. SGLang tells its drafts with every answer, and vLLM that drafts has its counters from the
    start: they prove it, unless the metrics page is missing or another server's."""
    engine = bench.engine
    if engine.speculative or engine.name == "sglang" or engine.page_tokens is not None:
        return Answer(Status.FAIL, "no draft at all", why="the engine answered without drafting")
    return Answer(Status.UNPROVEN, "nothing", why="the server has no metrics of an engine: its drafts are not counted")


def _why_no_hit(bench: Bench, fresh: Run, again: Run) -> str:
    """Why ``again`` is not known to have found what ``fresh`` left in the cache; empty where it found a page for every
    other prompt at least."""
    if bench.engine.prefix_cache is False:
        return "prefix caching is switched off"
    if again.cached_tokens is None:
        return "the server does not say how much of a prompt came from its cache"
    least = len(again.sequences) // 2 * max(bench.engine.page_tokens or NO_PAGE_TOKENS, LEAST_PAGE_TOKENS)
    if (more := again.cached_tokens - (fresh.cached_tokens or 0)) >= least:
        return ""
    return f"{max(more, 0):,.0f} tokens of the repeated prompts came from the cache, {least:,} are the least to judge"


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
