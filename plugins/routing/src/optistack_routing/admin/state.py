"""The router's state as plain data: for the admin API, the metrics and ``optistack route top``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from optistack_routing.fleet.roster import Member, Roster
from optistack_routing.proxy.record import DURATION_S, GAP_S, TTFT_S, Recorder

HISTOGRAMS = {"ttft": TTFT_S, "gaps": GAP_S, "durations": DURATION_S}
COUNTERS = ("answers", "refusals", "outcomes", "retries", "reasons", "sums")


def snapshot(recorder: Recorder) -> dict[str, Any]:
    """What one process has counted, as JSON can hold it."""
    counted: dict[str, Any] = {"connections": recorder.connections, "in_flight": recorder.in_flight}
    for name in COUNTERS:
        counted[name] = {str(key): value for key, value in getattr(recorder, name).items()}
    for name in HISTOGRAMS:
        histogram = getattr(recorder, name)
        counted[name] = {"counts": list(histogram.counts), "sum": histogram.sum}
    return counted


def merged(snapshots: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of several processes' snapshots."""
    total = snapshot(Recorder())
    for one in snapshots:
        total["connections"] += one["connections"]
        total["in_flight"] += one["in_flight"]
        for name in COUNTERS:
            for key, value in one[name].items():
                total[name][key] = total[name].get(key, 0) + value
        for name in HISTOGRAMS:
            total[name]["sum"] += one[name]["sum"]
            total[name]["counts"] = [a + b for a, b in zip(total[name]["counts"], one[name]["counts"], strict=True)]
    return total


def quantile(counts: list[int], bounds: tuple[float, ...], share: float) -> float | None:
    """The value that ``share`` of the observations do not exceed, by linear interpolation inside its bucket.

    None without observations; the largest bound when it lies above them all.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    below = 0
    for index, count in enumerate(counts[:-1]):
        if below + count >= wanted:
            low = bounds[index - 1] if index else 0.0
            return low + (bounds[index] - low) * (wanted - below) / count
        below += count
    return bounds[-1]


def spread(loads: list[int]) -> dict[str, float]:
    """Mean, population variance, and the one over the other (0 when nothing is in flight)."""
    mean = sum(loads) / len(loads) if loads else 0.0
    variance = sum((load - mean) ** 2 for load in loads) / len(loads) if loads else 0.0
    return {"mean": mean, "variance": variance, "variance_over_mean": variance / mean if mean else 0.0}


def describe(member: Member) -> dict[str, Any]:
    """One replica."""
    replica = member.replica
    return {
        "url": member.name,
        "source": member.source,
        "health": member.health,
        "circuit": member.breaker.state,
        "accepts": member.accepts,
        "draining": member.draining,
        "leaving": member.leaving,
        "in_flight": member.out,
        "pending_prefill_tokens": replica.pending_prefill_tokens if replica else 0,
        "kv_tokens": replica.kv_tokens if replica else None,
        "kv_utilisation": replica.kv_utilisation if replica else None,
        "error": member.error,
    }


def state(roster: Roster, waiting: int, counted: dict[str, Any], since_s: float) -> dict[str, Any]:
    """Everything. ``counted`` is merged over the processes."""
    replicas = [describe(member) for member in roster]
    homes = roster.ledger.policy.sessions()
    return {
        "up_s": round(monotonic() - since_s, 1),
        "ready": any(replica["accepts"] for replica in replicas),
        "in_flight": roster.ledger.in_flight,
        "waiting": waiting,
        "load": spread([replica["in_flight"] for replica in replicas if replica["accepts"]]),
        "sessions": {"known": sum(homes.values()), "by_homes": {str(homes_): count for homes_, count in homes.items()}},
        "replicas": replicas,
        "counted": counted,
    }
