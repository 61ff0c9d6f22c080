"""The judgements: known values, properties, and how often they are wrong."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optistack_conformance.outcomes import Outcome, worst
from optistack_conformance.selection import PROFILES
from optistack_conformance.statistics.acceptance import Drafts, judge_acceptance
from optistack_conformance.statistics.kl import ceiling, judge_kl, k3
from optistack_conformance.statistics.paired import (
    Paired,
    items_needed,
    judge_non_inferiority,
    loss_bounds,
    mcnemar_p,
    minimum_detectable_effect,
)
from optistack_conformance.statistics.rates import detections, false_alarms, false_passes

RUNS = 600

logprobs = st.lists(st.floats(-20, 0), min_size=1, max_size=20)


@given(logprobs)
def test_equal_log_probabilities_have_no_divergence(values: list[float]) -> None:
    assert k3(values, values) == 0.0


@given(logprobs, st.floats(-5, 5))
def test_divergence_is_never_negative(values: list[float], shift: float) -> None:
    assert k3(values, [value + shift for value in values]) >= 0.0


def test_divergence_of_a_small_shift_is_half_its_square() -> None:
    assert k3([-1.0], [-1.02]) == pytest.approx(0.02**2 / 2, rel=0.02)


def test_an_impossible_token_is_a_huge_divergence_and_still_a_number() -> None:
    assert 50 < k3([0.0, 0.0], [-math.inf, math.nan]) < math.inf


def test_kl_is_held_against_three_times_the_noise_and_never_more_than_the_ceiling() -> None:
    noise = [1e-4] * 6
    assert judge_kl([2.9e-4] * 6, noise, 0.003).outcome is Outcome.PASS
    assert judge_kl([3.1e-4] * 6, noise, 0.003).outcome is Outcome.FAIL
    assert judge_kl([0.0031] * 6, [0.002] * 6, 0.003).outcome is Outcome.FAIL
    assert judge_kl([0.0029] * 6, None, 0.003).outcome is Outcome.PASS


def test_kl_without_noise_still_allows_rounding() -> None:
    assert judge_kl([9e-5] * 6, [0.0] * 6, 0.003).outcome is Outcome.PASS


def test_kl_above_a_ceiling_that_the_noise_itself_breaks_is_inconclusive() -> None:
    assert judge_kl([0.01] * 6, [0.02] * 6, 0.003).outcome is Outcome.INCONCLUSIVE


def test_few_sequences_cannot_tell() -> None:
    assert judge_kl([1e-6] * 3, [1e-6] * 6, 0.003).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("dtype", "bound"), [(None, 0.003), ("bfloat16", 0.003), ("fp8_e4m3", 0.008), ("fp8", 0.008)])
def test_the_ceiling_follows_the_kv_dtype(dtype: str | None, bound: float) -> None:
    assert ceiling(dtype) == bound


def test_mcnemar_is_the_binomial_tail() -> None:
    # 7 of 8 flips are losses: (8 + 1) / 256.
    assert mcnemar_p(Paired(n=100, both=50, lost=7, gained=1)) == pytest.approx(9 / 256)
    assert mcnemar_p(Paired(n=100, both=50, lost=0, gained=0)) == 1.0


def test_loss_bounds_without_a_flip_are_not_zero() -> None:
    # z^2 / (n + z^2) with z = 1.645.
    _, upper = loss_bounds(Paired(n=100, both=50, lost=0, gained=0))
    assert upper == pytest.approx(2.706 / 102.706, rel=1e-3)


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 200), st.integers(1, 200))
def test_loss_lies_between_its_bounds(lost: int, gained: int, both: int, neither: int) -> None:
    pairs = Paired(n=lost + gained + both + neither, both=both, lost=lost, gained=gained)
    lower, upper = loss_bounds(pairs)
    assert -1 <= lower <= pairs.loss <= upper <= 1


def test_too_few_items_are_inconclusive_and_the_number_that_tells_passes() -> None:
    needed = items_needed(0.01, 0.0)
    assert judge_non_inferiority(Paired(n=80, both=60, lost=0, gained=0), 0.01) is Outcome.INCONCLUSIVE
    assert judge_non_inferiority(Paired(n=needed, both=needed // 2, lost=0, gained=0), 0.01) is Outcome.PASS


def test_a_clear_loss_fails_and_a_baseline_that_solves_nothing_tells_nothing() -> None:
    assert judge_non_inferiority(Paired(n=100, both=40, lost=20, gained=1), 0.02) is Outcome.FAIL
    assert judge_non_inferiority(Paired(n=100, both=0, lost=0, gained=5), 0.02) is Outcome.INCONCLUSIVE


def test_detectable_effect_is_the_published_formula() -> None:
    # 248.6 * sqrt(d / n) points at one-sided 0.05 and power 0.8: 1.19 for n = 1319 and 3% flips.
    assert 100 * minimum_detectable_effect(1319, 0.03) == pytest.approx(1.19, abs=0.01)


def test_a_collapse_needs_fewer_items_than_a_loss() -> None:
    # 7 of 8 needles lost and none gained: p = 2^-7. The same p with most of the items kept cannot tell.
    assert judge_non_inferiority(Paired(n=8, both=0, lost=7, gained=0), 0.05) is Outcome.FAIL
    assert judge_non_inferiority(Paired(n=64, both=50, lost=7, gained=0), 0.05) is Outcome.INCONCLUSIVE


def test_acceptance_fails_when_the_loss_is_no_accident() -> None:
    cold = Drafts(number=100, accepted=200)
    assert judge_acceptance(Drafts(100, 195), cold).outcome is Outcome.PASS
    assert judge_acceptance(Drafts(100, 170), cold).outcome is Outcome.INCONCLUSIVE
    assert judge_acceptance(Drafts(100, 60), cold).outcome is Outcome.FAIL
    assert judge_acceptance(Drafts(100, 0), 3.0).outcome is Outcome.FAIL
    assert judge_acceptance(Drafts(3, 0), 3.0).outcome is Outcome.INCONCLUSIVE


def test_the_worst_outcome_decides() -> None:
    assert worst([Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL]) is Outcome.FAIL
    assert worst([Outcome.PASS, Outcome.SKIPPED]) is Outcome.PASS
    assert worst([]) is Outcome.SKIPPED


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_false_alarms_are_rare(profile: object) -> None:
    """Measured over 10,000 runs: docs/conformance.md. No alarm in 600 would bound a rate at 0.5%; some have a rate."""
    rates = false_alarms(RUNS, PROFILES[getattr(profile, "name", "")], seed=1)
    for name in ("KL, five comparisons", "greedy margin"):
        assert rates[name].hits == 0, f"{name}: {rates[name]}"
    for claim in ("lossless", "lossy"):
        assert rates[f"any, of a run that claims to be {claim}"].rate <= 0.005, rates


def test_tier_2_rarely_passes_what_loses_exactly_the_margin() -> None:
    assert false_passes(RUNS, 6_400, 0.01, seed=1).rate <= 0.08


def test_faults_are_found_at_the_stated_sample_sizes() -> None:
    for name, rate in detections(200, seed=1).items():
        if name.startswith(("wrong token", "logits", "25%")):
            assert rate.rate >= 0.95, f"{name}: {rate}"
