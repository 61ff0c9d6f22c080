"""Tasks: what the baseline solves, the candidate solves."""

from __future__ import annotations

import pytest

from optistack_conformance.cases import Measure
from optistack_conformance.evals.run import Answer, passed
from optistack_conformance.outcomes import Outcome, inconclusive
from optistack_conformance.reference import Reference
from optistack_conformance.selection import Selection
from optistack_conformance.statistics.paired import (
    FAIL_ALPHA,
    Paired,
    judge_paired,
    mcnemar_p,
    minimum_detectable_effect,
)


def test_tasks_are_solved_as_by_the_baseline(
    reference: Reference, selection: Selection, request: pytest.FixtureRequest, measure: Measure
) -> None:
    """No more tasks are lost than chance flips: exact one-sided McNemar on paired results."""
    if selection.lossy is not None:
        pytest.skip(f"the candidate may differ ({selection.lossy}); tier 2 judges by how much")
    answers: list[Answer] = request.getfixturevalue("answers")
    pairs = Paired.of(reference.passed, passed(answers))
    if not pairs.n:
        inconclusive("baseline and candidate have no item in common")
    outcome, p_value = judge_paired(pairs), mcnemar_p(pairs)
    effect = minimum_detectable_effect(pairs.n, pairs.discordant_rate, FAIL_ALPHA)
    measure.figure("p-value", p_value, at_least=FAIL_ALPHA, n=pairs.n)
    measure.figure("baseline", 100 * pairs.baseline_accuracy, "%")
    measure.figure("candidate", 100 * pairs.candidate_accuracy, "%")
    measure.figure("lost", pairs.lost, "items")
    measure.figure("gained", pairs.gained, "items")
    measure.figure("smallest loss that it finds", 100 * effect, "points")
    text = f"{pairs.lost} lost, {pairs.gained} gained of {pairs.n}; a loss of {100 * effect:.1f} points would be found"
    if outcome is Outcome.INCONCLUSIVE:
        text += f"; the baseline itself solves {pairs.both + pairs.lost}, too few to lose: take a stronger model"
    measure.settle(outcome, text)
