"""``optistack bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optistack.cli import bench_results, bench_run, options
from optistack.cli.bench_options import Given, takes_given
from optistack.cli.commands import HELP

if TYPE_CHECKING:
    from optistack_bench.result import Result

MOST_USERS = 10_000

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)
app.command(name="compare")(bench_results.compare)
app.command(name="show")(bench_results.show)


@app.callback(invoke_without_command=True)
@takes_given
def bench(
    context: typer.Context,
    given: Given,
    users: Annotated[
        int, typer.Option("--users", min=1, max=MOST_USERS, help="Closed loop: so many sessions at once.")
    ] = 1,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="R", help="Open loop: sessions a second, or `recorded`.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure an engine with coding-agent sessions, and compare results.

    Latency, speed, throughput, cache hits and acceptance, with intervals over repeats. With --stack the stack is
    started without its plugins, measured and taken down, and then with them. Exit code 1 when the server dies in the
    middle or answers nothing, or when more requests of a repeat failed than --max-errors allows; what was measured is
    kept in --out.
    """
    if context.invoked_subcommand is not None:
        return
    _finish(bench_run.measure(given, [users], rate), json)


@app.command()
@takes_given
def sweep(
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="1,2,4,...", help="Sessions at once, one point each.")
    ],
    given: Given,
    min_tps_user: Annotated[
        float | None, typer.Option("--min-tps-user", min=0, help="Name the best throughput at this many tokens/s/user.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure under several loads, and draw tokens/s/user against tokens/min/GPU.

    With --out, pareto.png and report.html are written beside the figures. Names the knee of each curve, and the best
    throughput at --min-tps-user.
    """
    from optistack.errors import InputError
    from optistack_bench.installed import check_installed

    if min_tps_user is not None and given.prefill_only:
        raise InputError(
            "--min-tps-user is a speed of answers, and --prefill-only asks for one token each.",
            fix="Leave one of them out.",
        )
    users = _numbers(concurrency)
    if given.out is not None:
        check_installed("matplotlib")
    result = bench_run.measure(given, users)
    _finish(result, json, min_tps_user, sweeps=True, pictures=given.out if result.points else None)


def _numbers(text: str) -> list[int]:
    """``1,2,4`` as numbers, without repetitions. Raises InputError."""
    from optistack.errors import InputError

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 0 < int(word) <= MOST_USERS for word in words):
        raise InputError(
            f"--concurrency {text} is no list of numbers from 1 to {MOST_USERS:,}.", fix="Give it like 1,2,4,8."
        )
    return list(dict.fromkeys(map(int, words)))


def _finish(
    result: Result, as_json: bool, floor: float | None = None, *, sweeps: bool = False, pictures: Path | None = None
) -> None:
    """The figures first: that the pictures cannot be written takes nothing of them."""
    from optistack.cli import screen
    from optistack.errors import InputError

    bench_results.print_result(result, as_json, floor, sweeps=sweeps)
    code = result.exit_code
    if pictures is not None:
        try:
            bench_results.write_pictures(result, pictures, floor)
        except InputError as error:
            screen.print_error(error.message, error.fix)
            code = 1
    if result.problem:
        kept = "What was measured is marked so." if result.state != "complete" else ""
        screen.print_error(result.problem, kept)
    raise typer.Exit(code)
