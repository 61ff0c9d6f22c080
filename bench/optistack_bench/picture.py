"""The Pareto picture, drawn by matplotlib: PNG for a page, SVG for the report."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from optistack.files import write_file
from optistack_bench.pareto import SPEED, THROUGHPUT, flaw, knee, sound, speed_figure, spots, targets
from optistack_bench.result import Result

COLOURS = ("#4269d0", "#ff725c", "#2a9d6f", "#efb118", "#9c6b4e", "#a463f2")


def draw_png(result: Result, path: Path) -> None:
    """Write the picture to ``path``. Raises InputError when that is not possible."""
    picture = io.BytesIO()
    _figure(result).savefig(picture, format="png", dpi=130)
    write_file(path, picture.getvalue())


def draw_svg(result: Result) -> str:
    """The picture as an SVG element that refers to nothing outside."""
    text = io.StringIO()
    _figure(result).savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'\s(width|height)="[^"]*pt"', "", svg, count=2)


def _figure(result: Result) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    points, allowed = result.points, result.max_errors
    figure_of_speed = speed_figure(points)
    for number, target in enumerate(targets(points)):
        there = spots([point for point in points if point.target == target])
        there.sort(key=lambda spot: spot.point.users or 0)
        mine, flawed = sound(there, allowed), [spot for spot in there if flaw(spot.point, allowed)]
        colour = COLOURS[number % len(COLOURS)]
        spread = [(spot.point.estimate(figure_of_speed), spot.point.estimate(THROUGHPUT)) for spot in mine]
        if mine:
            axes.errorbar(
                [spot.speed for spot in mine],
                [spot.throughput for spot in mine],
                xerr=[(one.half_width or 0.0) if one else 0.0 for one, _ in spread],
                yerr=[(one.half_width or 0.0) if one else 0.0 for _, one in spread],
                marker="o",
                color=colour,
                ecolor=f"{colour}80",
                capsize=2,
                label=target,
            )
        if flawed:
            label = f"{target}, left out"
            axes.plot([one.speed for one in flawed], [one.throughput for one in flawed], "x", color=colour, label=label)
        bend = knee(mine)
        if bend is not None:
            axes.plot([bend.speed], [bend.throughput], "o", ms=13, mfc="none", mec=colour, label=f"knee of {target}")
        for spot in there:
            users = "" if spot.point.users is None else str(spot.point.users)
            axes.annotate(users, (spot.speed, spot.throughput), xytext=(6, 6), textcoords="offset points", color=colour)
    axes.set_xlabel("tokens/s/user (median)" if figure_of_speed == SPEED else "prompt tokens/s (median)")
    axes.set_ylabel("tokens/min/GPU, in and out")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.25)
    if axes.has_data():
        axes.legend(frameon=False)
    axes.set_title("Numbers at the points are users; bars are 95% intervals", fontsize=9)
    return figure
