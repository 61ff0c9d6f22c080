"""KL divergence between two ways of computing the same tokens, and the noise floor that it is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from optistack_conformance.outcomes import Outcome

SMALLEST = 1e-4
"""No KL below this fails: differences of this size come from the order of additions alone."""

CEILINGS = {"16-bit": 0.003, "8-bit": 0.008}
"""Never above these, whatever the noise: the gates of SGLang's own cache tests (0.002 to 0.003 BF16, 0.008 FP8)."""

FACTOR = 3.0
TOO_FEW = 4
"""With fewer than 4 sequences the mean was seen to spread by a factor of 3."""


def k3(sampled: ArrayLike, other: ArrayLike) -> float:
    """Schulman's k3 estimator of KL(sampled || other) from log probabilities of the emitted tokens, in nat.

    Mean of ``exp(r) - 1 - r`` with ``r = other - sampled``: never negative, low variance.
    (J. Schulman, "Approximating KL divergence", 2020.)
    """
    difference = np.asarray(other, dtype=float) - np.asarray(sampled, dtype=float)
    # A token with probability 0 on one side is an infinite divergence; 60 nat is infinite enough and stays a number.
    difference = np.clip(np.nan_to_num(difference, nan=60.0, posinf=60.0, neginf=-60.0), -60.0, 60.0)
    return float(np.mean(np.expm1(difference) - difference))


@dataclass(frozen=True)
class KLVerdict:
    """``mean`` over sequences against ``threshold``; ``floor`` is the 95th percentile of A/A, None when unmeasured."""

    outcome: Outcome
    mean: float
    threshold: float
    floor: float | None
    n: int


def ceiling(kv_dtype: str | None) -> float:
    """The bound that no noise floor lifts, by KV dtype (None: 16 bits)."""
    narrow = kv_dtype is not None and kv_dtype.startswith(("fp8", "fp4", "nvfp4", "mxfp", "int"))
    return CEILINGS["8-bit" if narrow else "16-bit"]


def judge_kl(values: Sequence[float], floor: Sequence[float] | None, bound: float) -> KLVerdict:
    """Mean of ``values`` (one a sequence) within ``min(max(3 x p95 of floor, 1e-4), bound)``.

    ``floor`` holds the same quantity between two runs of the same thing. Without one, ``bound`` alone judges. A floor
    that is itself above ``bound`` makes a value above it inconclusive: the noise would have to be mended first.
    """
    mean = float(np.mean(values)) if len(values) else float("nan")
    p95 = float(np.percentile(floor, 95)) if floor else None
    threshold = bound if p95 is None else min(max(FACTOR * p95, SMALLEST), bound)
    if len(values) < TOO_FEW or (floor and len(floor) < TOO_FEW):
        outcome = Outcome.INCONCLUSIVE
    elif mean <= threshold:
        outcome = Outcome.PASS
    else:
        outcome = Outcome.INCONCLUSIVE if p95 is not None and p95 > bound else Outcome.FAIL
    return KLVerdict(outcome, mean, threshold, p95, len(values))
