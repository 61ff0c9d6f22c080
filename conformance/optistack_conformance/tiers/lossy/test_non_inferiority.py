"""A lossy plugin may lose a little. How much it loses is bounded, or the suite says that it cannot tell."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from optistack_conformance.answers import NotScoredError
from optistack_conformance.cases import Measure
from optistack_conformance.evals.run import Answer, passed
from optistack_conformance.outcomes import Outcome, inconclusive
from optistack_conformance.reference import Reference
from optistack_conformance.scoring import Scorer
from optistack_conformance.selection import LONG_CONTEXT_TOKENS, Selection
from optistack_conformance.statistics.kl import k3
from optistack_conformance.statistics.paired import (
    FAIL_ALPHA,
    HARD_RECOVERY,
    MARGINS,
    RETRIEVAL_MARGIN,
    Paired,
    items_needed,
    judge_non_inferiority,
    loss_bounds,
    mcnemar_p,
    minimum_detectable_effect,
)

WEAK = 0.30
"""A model that finds fewer needles than this by itself has little to lose."""


def test_loss_on_tasks_is_within_the_margin(
    reference: Reference,
    answers: list[Answer],
    selection: Selection,
    engine_scorer: Scorer | None,
    measure: Measure,
) -> None:
    """The upper 95% bound of the loss over all tasks is within the margin, and recovery at least 0.95."""
    if selection.lossy is None:
        pytest.skip("nothing lossy is claimed (--lossy)")
    if engine_scorer is not None and reference.sequences:
        values = [
            k3(
                one.prefill_logprobs,
                [position.logprob for position in engine_scorer.prefill(one.prompt_ids, one.output_ids)],
            )
            for one in reference.sequences
        ]
        measure.figure("KL from the baseline (alarm only)", sum(values) / len(values), "nat", n=len(values))
    _judge(measure, reference.passed, passed(answers), MARGINS[selection.lossy])


def test_long_context_retrieval(
    reference: Reference, answers: list[Answer], selection: Selection, measure: Measure
) -> None:
    """Needles in long contexts are found as before. Mandatory for FP8 KV: short tasks do not see what it does there."""
    if selection.lossy is None:
        pytest.skip("nothing lossy is claimed (--lossy)")
    long = {answer.item.id for answer in answers if answer.item.context_tokens >= LONG_CONTEXT_TOKENS}
    if not long:
        inconclusive(f"the server takes no prompt of {LONG_CONTEXT_TOKENS} tokens, so no long context was tried")
    baseline = {key: value for key, value in reference.passed.items() if key in long}
    found = sum(baseline.values())
    if baseline and found < WEAK * len(baseline):
        measure.figure("needles found by the baseline", found, n=len(baseline))
        inconclusive(
            f"the baseline itself finds {found} of {len(baseline)} needles, too few to lose: take a stronger model"
        )
    candidate = {key: value for key, value in passed(answers).items() if key in long}
    _judge(measure, baseline, candidate, RETRIEVAL_MARGIN)


def _judge(measure: Measure, baseline: Mapping[str, bool], candidate: Mapping[str, bool], margin: float) -> None:
    pairs = Paired.of(baseline, candidate)
    if not pairs.n:
        inconclusive("baseline and candidate have no item in common")
    lower, upper = loss_bounds(pairs, FAIL_ALPHA)[0], loss_bounds(pairs)[1]
    needed = items_needed(margin, pairs.discordant_rate)
    effect = minimum_detectable_effect(pairs.n, pairs.discordant_rate)
    measure.figure("upper bound of the loss", 100 * upper, "points", at_most=100 * margin, n=pairs.n)
    measure.figure("lower bound of the loss", 100 * lower, "points")
    measure.figure("recovery", pairs.recovery, at_least=HARD_RECOVERY, n=pairs.n)
    measure.figure("McNemar p-value", mcnemar_p(pairs))
    measure.figure("baseline", 100 * pairs.baseline_accuracy, "%")
    measure.figure("candidate", 100 * pairs.candidate_accuracy, "%")
    measure.figure("lost", pairs.lost, "items")
    measure.figure("gained", pairs.gained, "items")
    measure.figure("smallest loss that it finds", 100 * effect, "points")
    measure.figure("items that would tell", needed, "items")
    outcome = judge_non_inferiority(pairs, margin)
    between = f"a loss between {100 * lower:.1f} and {100 * upper:.1f} points"
    text = f"{pairs.lost} lost, {pairs.gained} gained of {pairs.n}: {between}"
    if outcome is Outcome.INCONCLUSIVE:
        text += f"; {pairs.n} items cannot tell whether it is within {100 * margin:g}, about {needed:,} would"
    measure.settle(outcome, text)


@pytest.fixture
def engine_scorer(request: pytest.FixtureRequest) -> Scorer | None:
    """A scorer where the server can score."""
    try:
        scorer = Scorer(request.getfixturevalue("candidate"), request.getfixturevalue("engine").name)
        scorer.token_ids("a")  # SGLang 0.5.17 refuses under DFLASH
    except NotScoredError:
        return None
    return scorer
