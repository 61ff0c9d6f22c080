"""Quantiles, and what a few repeats say about a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""The 97.5% quantile of Student's t for 1 to 15 degrees of freedom; beyond, NEAR_NORMAL is used."""
NEAR_NORMAL = 2.120
"""For 16 and more degrees of freedom: a little too wide (1.960 for infinitely many)."""


def quantile(values: Sequence[float], share: float) -> float:
    """The ``share`` quantile of at least one value, interpolated between the nearest two."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


TAIL_VALUES = 5
TAILS = {"p95": 0.95, "p99": 0.99}


def values_needed(share: float) -> int:
    """How many values a quantile of the tail takes: so many that TAIL_VALUES lie beyond it in the mean, n * (1 - share)
    of them: 100 for the 95th percentile, 500 for the 99th. Of fewer it is nearly the largest value."""
    return math.ceil(TAIL_VALUES / (1 - share) - 1e-6)


@dataclass(frozen=True)
class Estimate:
    """A figure over repeats: its mean and 95% confidence interval. With one repeat there is no interval: None."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def half_width(self) -> float | None:
        """By Student's t, which takes the repeats as independent and about normal."""
        n = len(self.values)
        return None if n < 2 else t_975(n - 1) * stdev(self.values) / math.sqrt(n)


def t_975(freedom: float) -> float:
    """Student's t quantile, for the next smaller whole number of degrees of freedom."""
    whole = max(1, math.floor(freedom))
    return T_975[whole - 1] if whole <= len(T_975) else NEAR_NORMAL


def difference(before: Estimate, after: Estimate) -> tuple[float, float | None]:
    """The difference of the means and the half width of its 95% interval (Welch); None where a side has one repeat."""
    change = after.mean - before.mean
    sizes = len(before.values), len(after.values)
    if min(sizes) < 2:
        return change, None
    parts = [stdev(one.values) ** 2 / n for one, n in zip((before, after), sizes, strict=True)]
    total = sum(parts)
    if total == 0:
        return change, 0.0
    freedom = total**2 / sum(part**2 / (n - 1) for part, n in zip(parts, sizes, strict=True))
    return change, t_975(freedom) * math.sqrt(total)
