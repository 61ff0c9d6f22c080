"""Greedy tokens are the model's own, and drawn tokens come from its distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from optistack_conformance.answers import NotScoredError
from optistack_conformance.cases import Measure
from optistack_conformance.margin import bound_nat, judge
from optistack_conformance.outcomes import Outcome, inconclusive
from optistack_conformance.reference import Reference
from optistack_conformance.scoring import Scorer
from optistack_conformance.selection import Selection
from optistack_conformance.sequences import Run, draw, scored_tokens
from optistack_conformance.statistics.sampling import ALPHA, RANKS, judge_sampling

LOGPROBS = 20


def test_greedy_tokens_are_the_models_own(
    greedy: Run, states: dict[str, Run], recorded: Reference | None, kv_dtype: str | None, measure: Measure
) -> None:
    """Every greedy token is one that a prefill would pick too, up to rounding: a wrong one misses by far."""
    bound = bound_nat(kv_dtype)
    tokens = scored_tokens([*greedy.sequences, *states["cold"].sequences, *states["hit"].sequences])
    verdict = judge(tokens, bound)
    floor = recorded.worst_margin_nat if recorded is not None else None
    worst = verdict.worst.margin_nat if verdict.worst is not None else math.nan
    measure.figure("largest margin", worst, "nat", at_most=bound, floor=floor, n=verdict.tokens)
    measure.figure("wrong-token rate found with 95%", 1.0 - 0.05 ** (1.0 / max(verdict.tokens, 1)))
    measure.settle(Outcome.PASS if verdict.passed else Outcome.FAIL, verdict.describe())


def test_first_divergence_from_baseline(
    scorer: Scorer, reference: Reference, selection: Selection, kv_dtype: str | None, measure: Measure
) -> None:
    """Where greedy texts of candidate and baseline part, the two tokens are near in the candidate's eyes.

    Text that is equal throughout is asked for only where the engine promises not to depend on the batch.
    """
    if selection.lossy is not None:
        pytest.skip(f"the candidate may differ ({selection.lossy}); tier 2 judges by how much")
    if not reference.sequences:
        pytest.skip("the baseline cannot score tokens")
    parted = []
    for one in reference.sequences:
        ours = scorer.greedy_ids(one.prompt_ids, len(one.output_ids))
        if len(ours) != len(one.output_ids):
            pytest.fail(f"{len(ours)} tokens, where {len(one.output_ids)} were asked for", pytrace=False)
        pairs = zip(ours, one.output_ids, strict=True)
        at = next((position for position, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
        if at is not None:
            parted.append((one.prompt_ids, one.output_ids[: at + 1]))
    equal, number = len(reference.sequences) - len(parted), len(reference.sequences)
    if selection.batch_invariant:
        measure.figure("equal texts", equal, at_least=number, n=number)
        measure.settle(Outcome.PASS if equal == number else Outcome.FAIL, f"{equal} of {number} texts are equal")
    measure.figure("equal texts", equal, n=number)
    try:
        scored = [scorer.prefill(prompt, output)[-1] for prompt, output in parted]
    except NotScoredError as error:
        inconclusive(f"{equal} of {number} texts are equal, and how far off the others are cannot be told: {error}")
    margins = [max(position.top[0][1] - position.logprob, 0.0) for position in scored]
    bound, worst = bound_nat(kv_dtype), max(margins, default=0.0)
    measure.figure("margin at divergence", worst, "nat", at_most=bound, floor=reference.worst_margin_nat, n=number)
    text = f"{equal} of {number} texts are equal"
    text += f"; where they part the margin is at most {worst:.3f} nat" if margins else ""
    measure.settle(Outcome.PASS if worst <= bound else Outcome.FAIL, text)


def test_samples_follow_the_models_distribution(scorer: Scorer, selection: Selection, measure: Measure) -> None:
    """Tokens drawn at temperature 1 fall on the model's ranks as often as its probabilities say (chi-square)."""
    drawn = draw(
        scorer,
        tokens=selection.sizes.sampled_tokens,
        concurrency=selection.concurrency,
        seed=f"sampled/{selection.seed}",
        temperature=1.0,
        top=LOGPROBS,
    )
    positions = [position for one in drawn for position in one.positions]
    top = np.zeros((len(positions), LOGPROBS))
    ranks = np.full(len(positions), RANKS[-1] + 1)
    for row, position in enumerate(positions):
        top[row, : len(position.top)] = np.exp([logprob for _, logprob in position.top])
        ranks[row] = next((rank for rank, (token, _) in enumerate(position.top, 1) if token == position.token), 21)
    verdict = judge_sampling(ranks, top)
    measure.figure("p-value", verdict.p_value, at_least=ALPHA, n=verdict.tokens)
    measure.figure("greedy share found with 80%", verdict.detectable_share)
    text = (
        f"chi-square {verdict.statistic:.1f} on {verdict.degrees} degrees over {verdict.tokens} tokens; "
        f"a share of {verdict.detectable_share:.1%} taken greedily would be found with power 0.8"
    )
    if verdict.outcome is Outcome.INCONCLUSIVE:
        text = f"{verdict.tokens} tokens, and the likeliest one is so likely that drawing it always would not be found"
    measure.settle(verdict.outcome, text)
