"""What changed between two results, beyond the noise of their repeats."""

from __future__ import annotations

from dataclasses import dataclass

from optistack.errors import InputError
from optistack_bench.result import Point, Result
from optistack_bench.statistics import TAILS, difference, values_needed

FIGURES = {
    "ttft_s_p50": False,
    "ttft_s_p95": False,
    "ttft_s_p99": False,
    "itl_s_p50": False,
    "itl_s_p95": False,
    "itl_s_p99": False,
    "latency_s_p50": False,
    "user_tokens_s_p50": True,
    "total_tokens_min_gpu": True,
    "output_tokens_min_gpu": True,
    "hit_rate_usage": True,
    "hit_rate_engine": True,
    "acceptance_length": True,
    "queue_s_mean": False,
    "errors": False,
}
"""What is compared, and whether more of it is better."""


@dataclass(frozen=True)
class Change:
    """``verdict`` is ``better``, ``worse``, ``same`` (within the noise), ``unknown`` (a side has one repeat),
    ``too few`` (a 95th or 99th percentile of fewer values than that takes: it is nearly the largest), or ``too short``
    (a repeat of a side counted for less time than can be concluded from)."""

    target: str
    load: str
    figure: str
    before: float
    after: float
    half_width: float | None
    verdict: str

    def as_json(self) -> dict[str, object]:
        return dict(vars(self))


def compare(before: Result, after: Result) -> list[Change]:
    """Every figure of every load that both have. A change counts when its 95% interval (Welch) excludes 0; of twenty
    figures that did not change one will. A single target on each side is compared whatever its name.

    Raises InputError when nothing can be compared: other workloads, other loads, other least times.
    """
    pairs = list(_pairs(before, after))
    if not pairs:
        raise InputError("The two results have no load of one target in common.", fix="Compare runs of equal settings.")
    least = [float(side.settings.get("min_seconds") or 0) for side in (before, after)]
    if least[0] != least[1]:
        raise InputError(
            f"They went on for other times, so one sent sessions that the other never did: --min-seconds {least[0]:g} "
            f"and {least[1]:g}.",
            fix="Give both runs the same --min-seconds.",
        )
    for old, new in pairs:
        if old.workload.digest != new.workload.digest:
            raise InputError(
                f"They sent different things: {old.workload.name} {old.workload.digest} and {new.workload.name} "
                f"{new.workload.digest} ({old.load}).",
                fix="Give both runs the same workload, --seed, --sessions and --divide.",
            )
    return [change for old, new in pairs for change in _changes(old, new)]


def _pairs(before: Result, after: Result) -> list[tuple[Point, Point]]:
    names = {point.target for point in before.points}, {point.target for point in after.points}
    one_each = all(len(side) == 1 for side in names)
    return [
        (old, new)
        for old in before.points
        for new in after.points
        if (old.users, old.rate) == (new.users, new.rate) and (one_each or old.target == new.target)
    ]


def _changes(old: Point, new: Point) -> list[Change]:
    found = []
    for figure, more_is_better in FIGURES.items():
        mine, theirs = old.estimate(figure), new.estimate(figure)
        if mine is None or theirs is None:
            continue
        change, half = difference(mine, theirs)
        if not (_enough(old, figure) and _enough(new, figure)):
            verdict = "too few"
        elif old.too_short or new.too_short:
            verdict = "too short"
        elif half is None:
            verdict = "unknown"
        elif abs(change) <= half:
            verdict = "same"
        else:
            verdict = "better" if (change > 0) == more_is_better else "worse"
        found.append(Change(new.target, new.load, figure, mine.mean, theirs.mean, half, verdict))
    return found


def _enough(point: Point, figure: str) -> bool:
    """Whether each repeat has the values that ``figure`` takes, if it is a quantile of a tail."""
    name, _, quantile = figure.rpartition("_")
    return quantile not in TAILS or point.values(name) >= values_needed(TAILS[quantile])
