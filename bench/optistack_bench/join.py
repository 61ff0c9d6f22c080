"""Several results as one, so that stacks that were measured apart share their axes."""

from __future__ import annotations

from collections.abc import Mapping

from optistack.errors import InputError
from optistack_bench.result import Point, Result


def join(results: Mapping[str, Result]) -> Result:
    """The points of ``results`` in their order, each target under its result's name.

    Raises InputError where two of them did not play the same workload.
    """
    (first_name, first), *others = results.items()
    for name, result in others:
        if result.settings != first.settings or _workload(result) != _workload(first):
            raise InputError(
                f"{name} was measured with another workload than {first_name}.",
                fix="Show them one by one, or measure them with the same options.",
            )
    points = [
        point.model_copy(update={"target": _label(name, point, result)})
        for name, result in results.items()
        for point in result.points
    ]
    unfinished = {name: result for name, result in results.items() if result.state != "complete"}
    partial = [f"{name}: {result.why or result.state}" for name, result in unfinished.items()]
    update = {"points": tuple(points), "state": "partial" if partial else "complete", "why": "; ".join(partial)}
    return first.model_copy(update=update)


def _workload(result: Result) -> tuple[str, int] | None:
    """By its name and scale: the tokens of a load differ with its number of sessions."""
    return (result.points[0].workload.name, result.points[0].workload.divide) if result.points else None


def _label(name: str, point: Point, result: Result) -> str:
    targets = {one.target for one in result.points}
    return name if len(targets) == 1 else f"{name}, {point.target}"
