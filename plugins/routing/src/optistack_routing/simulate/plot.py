"""Pictures of a simulation; they need matplotlib, the plugin's extra ``plot``."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optistack.errors import InputError
from optistack.files import write_file
from optistack_routing.simulate.uniform import poisson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from optistack_routing.simulate.result import Result


def new_figure(width: float = 8.0, height: float = 5.0) -> Figure:
    """An empty figure that no display is needed for. Raises InputError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "A plot needs matplotlib.", fix="In a clone of optistack, run: pip install './plugins/routing[plot]'"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a PNG. Raises InputError when that is not possible."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    write_file(path, picture.getvalue())


def plot_loads(results: Sequence[Result], path: Path) -> None:
    """The share of time that a replica carries each number of requests, beside Poisson's with the first one's mean."""
    figure = new_figure()
    axes = figure.subplots()
    most = max(max(result.in_flight_share, default=0) for result in results)
    counts = range(min(most, 60) + 1)
    mean = results[0].mean_in_flight
    axes.plot(counts, [poisson(mean, n) for n in counts], "k--", label=f"Poisson, mean {mean:.1f}: 1.00")
    for result in results:
        shares = [result.in_flight_share.get(n, 0.0) for n in counts]
        axes.plot(counts, shares, marker=".", label=f"{result.policy}: {result.variance_over_mean:.2f}")
    axes.set_xlabel("requests in flight on a replica")
    axes.set_ylabel("share of time")
    axes.set_title(f"{results[0].replicas} replicas, {results[0].sessions} sessions")
    axes.legend(title="variance over mean")
    save(figure, path)
