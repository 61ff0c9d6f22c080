"""What hashing sessions uniformly does to the load, by arithmetic."""

from __future__ import annotations

import math


def at_most(sessions: int, replicas: int, most: int) -> float:
    """P(a replica has at most ``most`` sessions) when each of them falls on any replica alike: a binomial tail."""
    if replicas == 1:
        return 1.0 if sessions <= most else 0.0
    return math.fsum(math.exp(_log_binomial(sessions, 1 / replicas, count)) for count in range(min(most, sessions) + 1))


def at_least(sessions: int, replicas: int, least: int) -> float:
    """P(a replica has at least ``least`` sessions)."""
    return 1.0 - at_most(sessions, replicas, least - 1) if least > 0 else 1.0


def poisson(mean: float, count: int) -> float:
    """P(``count``) of the Poisson distribution, which many sessions hashed over many replicas follow."""
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) if mean > 0 else float(count == 0)


def _log_binomial(n: int, p: float, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
