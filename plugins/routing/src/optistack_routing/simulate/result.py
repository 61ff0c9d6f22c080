"""What a simulation measured."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

MISS_TOKENS = 1024
"""Tokens computed again from which a turn counts as a cold prefill."""


@dataclass(slots=True)
class Tally:
    """Sums over the measured turns, and over the measured seconds of every replica."""

    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    ttfts_s: list[float] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    miss_turns: dict[str, int] = field(default_factory=dict)
    miss_tokens: dict[str, int] = field(default_factory=dict)
    moved: int = 0
    unroutable: int = 0
    variance_s: float = 0.0
    mean_s: float = 0.0
    seconds: float = 0.0
    at_load_s: dict[int, float] = field(default_factory=dict)
    decision_s: float = 0.0
    decisions: int = 0

    def miss(self, cause: str, tokens: int, *, counts: bool) -> None:
        """``tokens`` computed again for that reason; ``counts`` where the turn is to be counted under it."""
        if counts:
            self.miss_turns[cause] = self.miss_turns.get(cause, 0) + 1
        self.miss_tokens[cause] = self.miss_tokens.get(cause, 0) + tokens


@dataclass(frozen=True, slots=True)
class Result:
    """``variance_over_mean``  of requests in flight over the replicas: both averaged over time, then divided
    ``hit_rate``              cached share of all prompt tokens
    ``recomputed_tokens``     computed though the fleet had computed them before; ``recomputed_per_turn`` is their mean
    ``cold_prefills``         turns with at least 1,024 tokens computed again, by cause; ``cold_tokens`` all such tokens
    ``first_turns``           turns without a predecessor, which nothing could have served from a cache
    ``ttft_p50_s``            and the others: None where no measured turn came to its first token
    ``migrations``            turns sent to another replica than the one of the turn before
    ``in_flight_share``       share of time that a replica carried that many requests
    ``homes``                 sessions by number of homes, at the end
    """

    policy: str
    replicas: int
    sessions: int
    seed: int
    simulated_s: float
    turns: int
    mean_in_flight: float
    variance_over_mean: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    hit_rate: float
    recomputed_tokens: int
    recomputed_per_turn: float
    first_turns: int
    migrations: int
    unroutable: int
    reasons: dict[str, int]
    cold_prefills: dict[str, int]
    cold_tokens: dict[str, int]
    in_flight_share: dict[int, float]
    homes: dict[int, int]
    decision_us: float

    @property
    def returns(self) -> bool:
        """Whether a turn had one before it, of which something could be cached or moved."""
        return self.first_turns < self.turns

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


def quantile(ordered: list[float], q: float) -> float | None:
    """The nearest-rank quantile of an ordered list; None when it is empty."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))]


def summarise(tally: Tally, *, policy: str, replicas: int, sessions: int, seed: int, homes: dict[int, int]) -> Result:
    """The figures behind the sums."""
    ordered = sorted(tally.ttfts_s)
    recomputed = sum(tally.miss_tokens.values())
    lived_s = sum(tally.at_load_s.values()) or 1.0
    return Result(
        policy=policy,
        replicas=replicas,
        sessions=sessions,
        seed=seed,
        simulated_s=tally.seconds,
        turns=tally.turns,
        mean_in_flight=tally.mean_s / (tally.seconds or 1.0),
        variance_over_mean=tally.variance_s / (tally.mean_s or 1.0),
        ttft_p50_s=quantile(ordered, 0.5),
        ttft_p95_s=quantile(ordered, 0.95),
        ttft_p99_s=quantile(ordered, 0.99),
        hit_rate=tally.cached_tokens / (tally.prompt_tokens or 1),
        recomputed_tokens=recomputed,
        recomputed_per_turn=recomputed / (tally.turns or 1),
        first_turns=tally.reasons.get("first_turn", 0),
        migrations=tally.moved,
        unroutable=tally.unroutable,
        reasons={key: count for key, count in sorted(tally.reasons.items()) if key != "first_turn"},
        cold_prefills=dict(sorted(tally.miss_turns.items())),
        cold_tokens=dict(sorted(tally.miss_tokens.items())),
        in_flight_share={load: seconds / lived_s for load, seconds in sorted(tally.at_load_s.items())},
        homes=dict(sorted(homes.items())),
        decision_us=1e6 * tally.decision_s / (tally.decisions or 1),
    )
