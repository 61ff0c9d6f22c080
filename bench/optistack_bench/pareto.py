"""The trade between a user's speed and a GPU's throughput: the frontier, its knee, and the best point at a floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optistack_bench.result import Point, Result

SPEED = "user_tokens_s_p50"
THROUGHPUT = "total_tokens_min_gpu"
PREFILL_SPEED = "prefill_tokens_s_p50"
"""Where one token only is asked for: prompt tokens over the time to the first, those from a cache included."""


@dataclass(frozen=True)
class Spot:
    """A point in the picture: ``speed`` in tokens/s/user, ``throughput`` in tokens/min/GPU."""

    point: Point
    speed: float
    throughput: float


def spots(points: Sequence[Point]) -> list[Spot]:
    """Those of ``points`` that have both figures, the fastest for a user first."""
    figure = speed_figure(points)
    found = [
        Spot(point, speed, throughput)
        for point in points
        if (speed := point.mean(figure)) is not None and (throughput := point.mean(THROUGHPUT)) is not None
    ]
    return sorted(found, key=lambda spot: -spot.speed)


def speed_figure(points: Sequence[Point]) -> str:
    """The speed that a user sees, or that of prefill where no answer has two tokens."""
    return SPEED if any(point.mean(SPEED) is not None for point in points) else PREFILL_SPEED


def frontier(given: Sequence[Spot]) -> list[Spot]:
    """Those than which none is better for both, the fastest for a user first."""
    best: list[Spot] = []
    for spot in sorted(given, key=lambda spot: (-spot.speed, -spot.throughput)):
        if not best or spot.throughput > best[-1].throughput:
            best.append(spot)
    return best


def knee(given: Sequence[Spot]) -> Spot | None:
    """Where more users begin to cost more than they bring: the spot of the frontier that lies farthest above the line
    between its ends, both axes scaled to 1. None for fewer than three spots, or where none lies above that line."""
    best = frontier(given)
    if len(best) < 3:
        return None
    first, last = best[0], best[-1]
    width, height = first.speed - last.speed, last.throughput - first.throughput

    def above(spot: Spot) -> float:
        return (spot.speed - last.speed) / width + (spot.throughput - first.throughput) / height - 1

    found = max(best, key=above)
    return found if above(found) > 1e-9 else None


def best_at(given: Sequence[Spot], floor: float) -> Spot | None:
    """The highest throughput among spots of at least ``floor`` tokens/s/user."""
    enough = [spot for spot in given if spot.speed >= floor]
    return max(enough, key=lambda spot: spot.throughput) if enough else None


def targets(points: Sequence[Point]) -> list[str]:
    """Names of what was measured, in order."""
    return list(dict.fromkeys(point.target for point in points))


def flaw(point: Point, allowed: float) -> str:
    """Why ``point`` is no load to recommend, with ``allowed`` of a repeat's requests that may fail; ``""`` for one that
    is whole."""
    if any(repeat.ended for repeat in point.repeats):
        return "partial"
    if point.users is not None and point.users > point.workload.sessions:
        return f"never reached with {point.workload.sessions} sessions"
    if point.error_share > allowed:
        return f"{point.error_share:.1%} of a repeat's requests failed"
    return ""


def sound(given: Sequence[Spot], allowed: float) -> list[Spot]:
    """The spots that may be recommended, and that make the frontier."""
    return [spot for spot in given if not flaw(spot.point, allowed)]


def conclusions(result: Result, floor: float | None) -> list[str]:
    """Sentences for each target: its knee, its best throughput at ``floor`` tokens/s/user, and which loads are in
    neither and why."""
    lines = []
    for target in dict.fromkeys((*targets(result.points), *result.loads)):
        points = [point for point in result.points if point.target == target]
        mine = sound(spots(points), result.max_errors)
        speed = speed_figure(points)
        if (bend := knee(mine)) is not None:
            lines.append(f"{target}: the knee is at {bend.point.load}, {_both(bend, speed)}.")
        elif len(mine) > 1:
            lines.append(f"{target}: no knee in these loads.")
        if floor is not None and points:
            lines.append(f"{target}: {_best(mine, floor, speed)}")
        left = {point.load: why for point in points if (why := flaw(point, result.max_errors))}
        there = {point.load for point in points}
        left |= {load: "not measured" for load in result.loads.get(target, ()) if load not in there}
        if left:
            lines.append(f"{target}: left out: {'; '.join(f'{load} ({why})' for load, why in left.items())}.")
    return lines


def _best(mine: Sequence[Spot], floor: float, speed: str) -> str:
    if mine and speed == PREFILL_SPEED:
        return f"no answer has two tokens, so nothing can be held against {floor:g} tokens/s/user."
    best = best_at(mine, floor)
    told = f"{best.point.load} {_are(best)} best, {_both(best, speed)}." if best else "nothing was measured."
    return f"at {floor:g} tokens/s/user or more, {told}"


def _are(spot: Spot) -> str:
    return "is" if spot.point.users == 1 else "are"


def _both(spot: Spot, speed: str) -> str:
    failed = sum(sum(repeat.errors.values()) for repeat in spot.point.repeats)
    but = f" ({failed} of its requests failed)" if failed else ""
    unit = "tokens/s/user" if speed == SPEED else "prompt tokens/s"
    return f"{spot.speed:,.1f} {unit} and {spot.throughput:,.0f} tokens/min/GPU{but}"
