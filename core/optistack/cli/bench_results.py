"""``optistack bench compare`` and ``optistack bench show``: results that are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optistack.cli import options
from optistack.errors import InputError

if TYPE_CHECKING:
    from optistack_bench.result import Result


def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="A folder that --out named, or its result.json.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another, of the same workload.")],
    json: options.Json = False,
) -> None:
    """Say what changed from A to B beyond the noise of their repeats."""
    from rich.text import Text

    from optistack.cli import screen
    from optistack_bench.compare import compare as held_against
    from optistack_bench.differences import differences
    from optistack_bench.notes import seen_before, short_windows
    from optistack_bench.result import load_result
    from optistack_bench.terminal import changes_view

    old, new = load_result(before), load_result(after)
    changes = held_against(old, new)
    problems = {str(name): result.problem for name, result in ((before, old), (after, new)) if result.problem}
    for name, problem in problems.items():
        screen.note(f"{name} is no measurement to go by: {problem}")
    both = {before: old, after: new}.items()
    warm = [
        sentence
        for name, result in both
        for point in result.points
        for sentence in seen_before(f"{name}, {point.load}", point)
    ]
    short = [sentence for name, result in both for sentence in short_windows(str(name), result.points)]
    other = differences({str(before): old, str(after): new}) if before != after else []
    if json:
        told = [change.as_json() for change in changes]
        doubts = {"problems": problems, "seen_before": warm, "too_short": short}
        screen.print_json({"changes": told, **doubts, "differences": other})
    else:
        screen.show(*changes_view(changes), *map(Text, (*warm, *short, *other)))


def show(
    results: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders that --out named, or result.json.")],
    min_tps_user: Annotated[
        float | None, typer.Option("--min-tps-user", min=0, help="Name the best throughput at this many tokens/s/user.")
    ] = None,
    pictures: Annotated[bool, typer.Option("--pictures", help="Draw pareto.png and report.html anew.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Draw the pictures there; several results need it.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show a result again, or several on the same axes; --pictures draws without measuring."""
    from optistack_bench.installed import check_installed
    from optistack_bench.result import load_result

    loaded = load_result(results[0]) if len(results) == 1 else _joined(results)
    if pictures or out is not None:
        check_installed("matplotlib")
        write_pictures(loaded, out or _folder_of(results), min_tps_user)
    print_result(loaded, json, min_tps_user, sweeps=True)


def _joined(places: list[Path]) -> Result:
    from optistack.cli import screen
    from optistack_bench.differences import differences
    from optistack_bench.join import join
    from optistack_bench.result import load_result

    names = [(place if place.is_dir() else place.parent).resolve().name for place in places]
    if len(set(names)) < len(names):
        raise InputError("Two results have the same folder name, which is what they are called by.", fix="Rename one.")
    results = {name: load_result(place) for name, place in zip(names, places, strict=True)}
    joined = join(results)
    for sentence in differences(results):
        screen.note(sentence)
    return joined


def _folder_of(results: list[Path]) -> Path:
    if len(results) > 1:
        raise InputError("Pictures of several results need a folder.", fix="Name one with --out DIR.")
    return results[0] if results[0].is_dir() else results[0].parent


def write_pictures(result: Result, folder: Path, floor: float | None) -> None:
    from optistack.files import write_file
    from optistack_bench.html import html_page
    from optistack_bench.picture import draw_png

    folder.mkdir(parents=True, exist_ok=True)
    draw_png(result, folder / "pareto.png")
    write_file(folder / "report.html", html_page(result, floor))


def print_result(result: Result, as_json: bool, floor: float | None, *, sweeps: bool) -> None:
    from optistack.cli import screen

    if as_json:
        screen.print_json(result)
        return
    from optistack_bench.pareto import conclusions
    from optistack_bench.terminal import groups_view, result_view

    screen.show(*result_view(result))
    if len(result.points) == 1:
        screen.show(*groups_view(result.points[0]))
    if sweeps:
        screen.show(*conclusions(result, floor))
