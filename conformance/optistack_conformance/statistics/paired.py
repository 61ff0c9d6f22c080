"""Two servers, the same items: did the candidate lose?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from optistack_conformance.outcomes import Outcome

ALPHA = 0.05
"""Of the bound that a PASS rests on."""

FAIL_ALPHA = 0.001
"""Of what a FAIL rests on. A healthy run shall fail once in 200 at most, all its tests together, and three of them have
a nominal rate of their own: this one, the acceptance length's and the samples' chi-square (``sampling.ALPHA``), each at
0.001. That leaves 0.002 for the KL tests, which are held against a measured noise floor, itself a random number.
The rates are measured in ``rates`` and stand in docs/conformance.md."""

COLLAPSE_ALPHA = 0.008
COLLAPSE_RECOVERY = 0.5
"""A candidate that keeps less than half fails at 7 of 7 flips lost (p = 2^-7), which 8 long needles can show. Chance
does not bring both about: to lose half of the items by chance, more have to flip than flip in healthy runs."""

POWER = 0.80
HARD_RECOVERY = 0.95
MARGINS = {"fp8-kv": 0.01, "nvfp4": 0.02}
"""How much accuracy a lossy plugin may cost, as a share of the items."""

RETRIEVAL_MARGIN = 0.05
"""Long-context failures are collapses (91% to 13% was seen), so a coarser bound does, and needs fewer long prompts."""


@dataclass(frozen=True)
class Paired:
    """Counts over ``n`` common items: ``lost`` passed on the baseline only, ``gained`` on the candidate only."""

    n: int
    both: int
    lost: int
    gained: int

    @classmethod
    def of(cls, baseline: Mapping[str, bool], candidate: Mapping[str, bool]) -> Paired:
        common = baseline.keys() & candidate.keys()
        return cls(
            n=len(common),
            both=sum(baseline[key] and candidate[key] for key in common),
            lost=sum(baseline[key] and not candidate[key] for key in common),
            gained=sum(candidate[key] and not baseline[key] for key in common),
        )

    @property
    def baseline_accuracy(self) -> float:
        return (self.both + self.lost) / self.n if self.n else math.nan

    @property
    def candidate_accuracy(self) -> float:
        return (self.both + self.gained) / self.n if self.n else math.nan

    @property
    def loss(self) -> float:
        """Baseline's accuracy minus the candidate's; positive when the candidate is worse."""
        return (self.lost - self.gained) / self.n if self.n else math.nan

    @property
    def recovery(self) -> float:
        """The candidate's accuracy as a share of the baseline's."""
        return self.candidate_accuracy / self.baseline_accuracy if self.both + self.lost else math.nan

    @property
    def discordant_rate(self) -> float:
        return (self.lost + self.gained) / self.n if self.n else math.nan


def mcnemar_p(paired: Paired) -> float:
    """Exact one-sided p-value of "the candidate is worse": the chance of so many losses among the flips.

    Under no difference a flip is a loss with probability 1/2 (McNemar 1947, binomial form).
    """
    from scipy.stats import binomtest

    flips = paired.lost + paired.gained
    return float(binomtest(paired.lost, flips, 0.5, alternative="greater").pvalue) if flips else 1.0


def judge_paired(paired: Paired) -> Outcome:
    """FAIL when the losses are no accident (McNemar, p <= 0.001); INCONCLUSIVE when they could not be: to lose all that
    the baseline solves would be none, which takes less than 10 items. Else PASS."""
    if mcnemar_p(paired) <= FAIL_ALPHA:
        return Outcome.FAIL
    worst = Paired(n=paired.n, both=0, lost=paired.both + paired.lost, gained=0)
    return Outcome.PASS if mcnemar_p(worst) <= FAIL_ALPHA else Outcome.INCONCLUSIVE


def loss_bounds(paired: Paired, alpha: float = ALPHA) -> tuple[float, float]:
    """One-sided ``1 - alpha`` lower and upper bounds of the loss (baseline minus candidate accuracy).

    The score interval for a difference of paired proportions: T. Tango, Statistics in Medicine 17 (1998), 891-908. It
    stays honest without a single flip: the upper bound is then z^2 / (n + z^2), not zero.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    n, lost, gained = paired.n, paired.lost, paired.gained
    z = float(norm.isf(alpha))

    def score(delta: float) -> float:
        a = 2.0 * n
        b = -lost - gained + (2.0 * n - lost + gained) * delta
        c = -gained * delta * (1.0 - delta)
        gain_rate = (math.sqrt(max(b * b - 4.0 * a * c, 0.0)) - b) / (2.0 * a)
        variance = n * (2.0 * gain_rate + delta * (1.0 - delta))
        distance = lost - gained - n * delta
        return (
            distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance) if distance else 0.0
        )

    edge = 1.0 - 1e-9
    upper = brentq(lambda d: _finite(score(d)) + z, paired.loss, edge) if paired.loss < edge else 1.0
    lower = brentq(lambda d: _finite(score(d)) - z, -edge, paired.loss) if paired.loss > -edge else -1.0
    return float(lower), float(upper)


def _finite(value: float) -> float:
    return max(-1e9, min(1e9, value))


def minimum_detectable_effect(n: int, discordant_rate: float, alpha: float = ALPHA, power: float = POWER) -> float:
    """The loss that ``n`` paired items show with ``power``: (z_alpha + z_power) * sqrt(d / n), as a share.

    One-sided. With no flip seen, d is taken as 1 / n: rates below that cannot be told from it.
    """
    from scipy.stats import norm

    rate = max(discordant_rate, 1.0 / n)
    return float((norm.isf(alpha) + norm.isf(1.0 - power)) * math.sqrt(rate / n))


def items_needed(margin: float, discordant_rate: float, alpha: float = ALPHA, power: float = POWER) -> int:
    """How many items decide non-inferiority by ``margin`` when the candidate truly loses nothing."""
    from scipy.stats import norm

    z_alpha, z_power = float(norm.isf(alpha)), float(norm.isf(1.0 - power))
    without_flips = z_alpha**2 * (1.0 - margin) / margin
    return math.ceil(max(without_flips, ((z_alpha + z_power) / margin) ** 2 * discordant_rate))


def judge_non_inferiority(paired: Paired, margin: float) -> Outcome:
    """PASS when the upper 95% bound of the loss is within ``margin`` and recovery is at least 0.95.

    FAIL when the lower 99.9% bound is beyond ``margin``, or recovery is below 0.95 and the loss is no accident
    (McNemar, p <= 0.001), or recovery is below a half (p <= 0.008). Otherwise INCONCLUSIVE: too few items to tell.
    """
    if not paired.n or not paired.both + paired.lost:
        return Outcome.INCONCLUSIVE
    lower, upper = loss_bounds(paired, FAIL_ALPHA)[0], loss_bounds(paired, ALPHA)[1]
    poor, p_value = paired.recovery < HARD_RECOVERY, mcnemar_p(paired)
    collapsed = paired.recovery < COLLAPSE_RECOVERY and p_value <= COLLAPSE_ALPHA
    if lower > margin or (poor and p_value <= FAIL_ALPHA) or collapsed:
        return Outcome.FAIL
    return Outcome.PASS if upper <= margin and not poor else Outcome.INCONCLUSIVE
