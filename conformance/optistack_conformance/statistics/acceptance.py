"""Is the acceptance length of a drafter what it was?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from optistack_conformance.outcomes import Outcome
from optistack_conformance.statistics.paired import FAIL_ALPHA

KEPT = 0.95
"""Of the reference's acceptance length, at least."""


@dataclass(frozen=True)
class Drafts:
    """``number`` drafts were made and ``accepted`` of their tokens taken."""

    number: float
    accepted: float

    @property
    def mean_accepted(self) -> float:
        return self.accepted / self.number

    @property
    def length(self) -> float:
        """Tokens a step: the accepted ones and the bonus token."""
        return 1.0 + self.mean_accepted

    @property
    def variance(self) -> float:
        """Of the length. A draft is accepted up to the first token that is wrong; if each is right with the same
        probability, the number is geometric with mean m and variance m (1 + m), and cutting it off at the draft's end
        makes it smaller."""
        return self.mean_accepted * (1.0 + self.mean_accepted) / self.number


@dataclass(frozen=True)
class AcceptanceVerdict:
    """``share`` is the length as a share of the reference's, ``p_value`` of "it is lower" (normal approximation)."""

    outcome: Outcome
    share: float
    p_value: float


def judge_acceptance(measured: Drafts, reference: Drafts | float) -> AcceptanceVerdict:
    """PASS at 0.95 of ``reference`` and above; FAIL below when that is no accident; else INCONCLUSIVE.

    ``reference`` is another measurement, or a length that is known.
    """
    from scipy.stats import norm

    if isinstance(reference, Drafts):
        length, variance = reference.length, measured.variance + reference.variance
    else:
        length, variance = reference, measured.variance
    if variance > 0:
        p_value = float(norm.sf((length - measured.length) / math.sqrt(variance)))
    else:
        # Not one token was accepted: a draft's first one is wrong with probability 1 / length, if it is geometric.
        p_value = length**-measured.number
    if measured.length >= KEPT * length:
        outcome = Outcome.PASS
    else:
        outcome = Outcome.FAIL if p_value <= FAIL_ALPHA else Outcome.INCONCLUSIVE
    return AcceptanceVerdict(outcome, measured.length / length, p_value)
