"""Are tokens drawn at temperature 1 drawn from the model's own distribution?

Each drawn token is scored by a prefill of its own sequence, which gives the distribution that it should have come from,
by rank. Given what came before, the cell of a token is one draw from known probabilities, so observed minus expected
counts are a sum of martingale differences and their quadratic form is chi-square (martingale central limit theorem):
no baseline is needed, and tokens of one sequence need not be independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from optistack_conformance.outcomes import Outcome

ALPHA = 1e-3
RANKS = (1, 2, 4, 8, 20)
"""Upper ranks of the cells; what lies behind the last is one cell more."""


@dataclass(frozen=True)
class SamplingVerdict:
    """``p_value`` of the test; ``detectable_share``: the smallest share of tokens taken greedily instead of drawn that
    it finds with power 0.8 at this sample size."""

    p_value: float
    statistic: float
    degrees: int
    tokens: int
    detectable_share: float

    @property
    def passed(self) -> bool:
        return self.p_value >= ALPHA

    @property
    def outcome(self) -> Outcome:
        """INCONCLUSIVE where even a server that always takes the likeliest token would pass."""
        if not self.passed:
            return Outcome.FAIL
        return Outcome.PASS if self.detectable_share < 1.0 else Outcome.INCONCLUSIVE


def judge_sampling(ranks: ArrayLike, top_probabilities: ArrayLike) -> SamplingVerdict:
    """``ranks`` [tokens], 1 is the likeliest and anything above 20 is "behind"; ``top_probabilities`` [tokens, 20]."""
    from scipy.stats import chi2

    probabilities = _cell_probabilities(np.asarray(top_probabilities, dtype=float))
    observed = np.searchsorted(RANKS, np.asarray(ranks), side="left")
    tokens, cells = probabilities.shape
    counts = np.bincount(observed, minlength=cells)[:cells]
    covariance = np.diag(probabilities.sum(axis=0)) - probabilities.T @ probabilities
    used = probabilities.sum(axis=0) >= 5.0
    # One cell is given by the others; leave out the fullest.
    used[int(np.argmax(np.where(used, probabilities.sum(axis=0), -1.0)))] = False
    degrees = int(used.sum())
    if not degrees:
        return SamplingVerdict(1.0, 0.0, 0, tokens, 1.0)
    difference = (counts - probabilities.sum(axis=0))[used]
    inverse = np.linalg.pinv(covariance[np.ix_(used, used)])
    statistic = float(difference @ inverse @ difference)
    greedy = -probabilities.copy()
    greedy[:, 0] += 1.0
    shift = greedy.sum(axis=0)[used]
    return SamplingVerdict(
        p_value=float(chi2.sf(statistic, degrees)),
        statistic=statistic,
        degrees=degrees,
        tokens=tokens,
        detectable_share=_detectable(float(shift @ inverse @ shift), degrees),
    )


def _cell_probabilities(top: NDArray[np.float64]) -> NDArray[np.float64]:
    edges = (0, *RANKS)
    cells = [top[:, start:end].sum(axis=1) for start, end in zip(edges, RANKS, strict=False)]
    return np.column_stack([*cells, np.clip(1.0 - top.sum(axis=1), 0.0, 1.0)])


def _detectable(noncentrality: float, degrees: int, power: float = 0.8) -> float:
    """The share w for which a chi-square with noncentrality w^2 * ``noncentrality`` is found with ``power``."""
    from scipy.optimize import brentq
    from scipy.stats import chi2, ncx2

    critical = float(chi2.isf(ALPHA, degrees))

    def lacking(share: float) -> float:
        return float(ncx2.sf(critical, degrees, share**2 * noncentrality)) - power

    if noncentrality <= 0 or lacking(1.0) < 0:
        return 1.0
    return float(brentq(lacking, 1e-9, 1.0)) if not math.isinf(noncentrality) else 0.0
