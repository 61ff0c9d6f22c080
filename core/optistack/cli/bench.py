"""``optistack bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optistack.cli import options
from optistack.cli.commands import HELP

if TYPE_CHECKING:
    from optistack_bench.result import Result
    from optistack_bench.settings import Settings

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)

Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="The server to measure: http://127.0.0.1:8000.")
]
Engines = Annotated[
    list[str] | None,
    typer.Option("--engine", metavar="URL", help="An engine behind it, whose metrics are read. Repeatable."),
]
Gpus = Annotated[int | None, typer.Option("--gpus", min=1, help="GPUs behind the endpoint, for figures a GPU.")]
Stacks = Annotated[
    list[Path] | None,
    typer.Option("--stack", metavar="FILE", help="Start this stack without plugins, then with them. Repeatable."),
]
NoBaseline = Annotated[bool, typer.Option("--no-baseline", help="Do not start the stack without its plugins first.")]
Workload = Annotated[
    str, typer.Option("--workload", metavar="NAME", help="sessions, trace, 3k-100 or 50k-200 (45k of it shared).")
]
Trace = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Recorded sessions or Mooncake's (.jsonl, .jsonl.gz).")
]
Sessions = Annotated[int | None, typer.Option("--sessions", min=1, help="Sessions to play; two a user unless given.")]
Turns = Annotated[int | None, typer.Option("--turns", min=1, help="The first turns of each session only.")]
Domain = Annotated[list[str] | None, typer.Option("--domain", metavar="NAME", help="code, prose or made. Repeatable.")]
Divide = Annotated[
    str | None, typer.Option("--divide", metavar="N", help="Divide every count of tokens: a power of two, or auto.")
]
ThinkLimit = Annotated[float, typer.Option("--think-limit", min=0, help="Seconds to which pauses are cut.")]
Repeats = Annotated[int, typer.Option("--repeats", min=1, max=100, help="Repeats, for intervals.")]
Warmup = Annotated[int, typer.Option("--warmup", min=0, help="Requests of each user before anything counts.")]
Seed = Annotated[int, typer.Option("--seed", help="Of everything that is drawn.")]
PrefillOnly = Annotated[bool, typer.Option("--prefill-only", help="Ask for one token only.")]
Header = Annotated[str, typer.Option("--session-header", metavar="NAME", help="Header with the session's name.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds that a request may take.")]
Context = Annotated[int | None, typer.Option("--context", min=1, help="The model's context, if the server says none.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Keep result.json and requests.jsonl there.")]


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    endpoint: Endpoint = None,
    engine: Engines = None,
    gpus: Gpus = None,
    users: Annotated[int, typer.Option("--users", min=1, help="Closed loop: so many sessions at once.")] = 1,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="R", help="Open loop: sessions a second, or `recorded`.")
    ] = None,
    workload: Workload = "sessions",
    trace: Trace = None,
    sessions: Sessions = None,
    turns: Turns = None,
    domain: Domain = None,
    divide: Divide = None,
    think_limit: ThinkLimit = 30.0,
    repeats: Repeats = 3,
    warmup: Warmup = 1,
    seed: Seed = 0,
    prefill_only: PrefillOnly = False,
    session_header: Header = "X-Session-Id",
    timeout: Timeout = 600.0,
    model_context: Context = None,
    out: Out = None,
    json: options.Json = False,
) -> None:
    """Measure an engine with coding-agent sessions: latency, speed, throughput, cache hits, acceptance.

    Exit code 1 when the server dies in the middle or answers nothing; what was measured until then is kept in --out.
    """
    if context.invoked_subcommand is not None:
        return
    from optistack_bench.load import Loop
    from optistack_bench.run import run_endpoint

    settings = settings_of(locals())
    loop = Loop(users=users, rate=_rate(rate), prefill_only=prefill_only)
    from optistack.cli import screen

    target = _target(endpoint, engine, gpus)
    with screen.ScreenProgress() as progress:
        result = run_endpoint(target, settings, [loop], out=_folder(out), progress=progress)
    _finish(result, json)


def settings_of(given: dict[str, Any]) -> Settings:
    """The options of a command as ``Settings``. Raises InputError for what does not go together."""
    from optistack.errors import InputError
    from optistack_bench.run import check_installed

    check_installed()
    from optistack_bench.settings import Settings

    divide = given["divide"]
    if divide is not None and divide != "auto" and not divide.isdecimal():
        raise InputError(f"--divide {divide} is no number.", fix="Give a power of two, or auto.")
    return Settings(
        workload=given["workload"],
        trace=given["trace"],
        sessions=given["sessions"],
        turns=given["turns"],
        domains=tuple(given["domain"] or ("code", "prose")),
        divide=None if divide is None else 0 if divide == "auto" else max(1, int(divide)),
        think_limit_s=given["think_limit"],
        repeats=given["repeats"],
        warmup=given["warmup"],
        seed=given["seed"],
        prefill_only=given["prefill_only"],
        session_header=given["session_header"],
        timeout_s=given["timeout"],
        context_tokens=given["model_context"],
    )


def _rate(rate: str | None) -> float | str | None:
    from optistack.errors import InputError

    if rate is None or rate == "recorded":
        return rate
    try:
        value = float(rate)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise InputError(f"--rate {rate} is no number of sessions a second.", fix="Give one above 0, or `recorded`.")
    return value


def _target(endpoint: str | None, engines: list[str] | None, gpus: int | None) -> Any:
    from optistack.errors import InputError
    from optistack_bench.measure import Target

    if endpoint is None:
        raise InputError("What is to be measured?", fix="Give --endpoint URL.")
    return Target("endpoint", endpoint.rstrip("/"), tuple(engines or ()), gpus or 1)


def _folder(out: Path | None) -> Path | None:
    """``out``, made if it is not there. Raises InputError when it holds another result."""
    from optistack.errors import InputError

    if out is None:
        return None
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is no folder.", fix="Name a folder; it is made.")
    if (out / "result.json").exists():
        raise InputError(f"--out {out} holds a result already.", fix="Name another folder, or remove it.")
    out.mkdir(parents=True, exist_ok=True)
    return out


def _finish(result: Result, as_json: bool) -> None:
    from optistack.cli import screen

    if as_json:
        screen.print_json(result)
    else:
        from optistack_bench.terminal import groups_view, result_view

        screen.show(*result_view(result))
        if len(result.points) == 1:
            screen.show(*groups_view(result.points[0]))
    if result.state != "complete":
        screen.print_error(f"The benchmark is partial: {result.why}", "What was measured is marked so.")
    raise typer.Exit(result.exit_code)
