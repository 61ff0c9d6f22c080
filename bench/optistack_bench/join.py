"""Several results as one, so that stacks that were measured apart share their axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optistack.errors import InputError
from optistack_bench.result import Point, Result
from optistack_bench.settings import Settings

SHAPING = (
    "workload", "sessions", "turns", "domains", "divide", "think_limit_s", "seed", "prefill_only", "chat", "tools",
    "min_seconds",
)  # fmt: skip
"""The settings that decide what is sent and when. A trace is told by the workload's name, wherever its file lies; what
a text is in tokens of the served model, by the digest."""

FIX = "Show them one by one, or measure them with the same options."


def join(results: Mapping[str, Result]) -> Result:
    """The points of ``results`` in their order, each target under its result's name.

    A result without any is left out, and that is said. Raises InputError where two of them did not play the same
    workload, or nothing was measured by any.
    """
    measured = {name: result for name, result in results.items() if result.points}
    if not measured:
        raise InputError(f"Nothing was measured in {', '.join(results)}.", fix="Measure one of them again.")
    (first_name, first), *others = measured.items()
    for at, (name, result) in enumerate(others, 1):
        if _shape(result) != _shape(first):
            raise InputError(f"{name} was measured with another workload than {first_name}.", fix=FIX)
        for earlier_name, earlier in list(measured.items())[:at]:
            _check_loads(earlier_name, earlier, name, result)
    points = [
        point.model_copy(update={"target": _label(name, point.target, result)})
        for name, result in measured.items()
        for point in result.points
    ]
    doubts = [f"{name}: {_doubt(result)}" for name, result in results.items() if _doubt(result)]
    update = {
        "points": tuple(points),
        "machine": "; ".join(dict.fromkeys(result.machine for result in measured.values())),
        "state": "partial" if doubts else "complete",
        "why": "; ".join(doubts),
        "loads": {
            _label(name, target, result): loads
            for name, result in measured.items()
            for target, loads in result.loads.items()
        },
    }
    return first.model_copy(update=update)


def _shape(result: Result) -> dict[str, Any]:
    """What was asked for, and the workload's name. A setting that an older result does not have is as by default."""
    asked = {**Settings().as_json(), **result.settings}
    shape = {key: list(asked[key]) if isinstance(asked[key], tuple) else asked[key] for key in SHAPING}
    return {**shape, "name": result.points[0].workload.name}


def _check_loads(one_name: str, one: Result, other_name: str, other: Result) -> None:
    """Raise InputError where both have a load and were not sent the same under it. Of a chat the scale alone is
    compared: how much text its lengths take is foreseen from what the server says."""
    sent = {(point.users, point.rate): _sent(one, point) for point in one.points}
    for point in other.points:
        earlier = sent.get((point.users, point.rate))
        if earlier is not None and earlier != _sent(other, point):
            raise InputError(
                f"{other_name} was sent other requests than {one_name} at {point.load}: {_sent(other, point)}, and "
                f"{earlier} there.",
                fix=FIX,
            )


def _sent(result: Result, point: Point) -> str:
    scale = f"divided by {point.workload.divide}"
    return scale if result.settings.get("chat") else f"{scale}, digest {point.workload.digest}"


def _doubt(result: Result) -> str:
    """Why ``result`` is not all that it was meant to be; ``""`` for one that is."""
    why = "" if result.state == "complete" else result.why or result.state
    if not result.points:
        return f"left out, nothing was measured ({why})" if why else "left out, nothing was measured"
    return why


def _label(name: str, target: str, result: Result) -> str:
    targets = {one.target for one in result.points} | set(result.loads)
    return name if len(targets) == 1 else f"{name}, {target}"
