"""Options of ``optistack bench`` and ``optistack bench sweep``, and what is done with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optistack.cli import options

if TYPE_CHECKING:
    from optistack_bench.result import Result
    from optistack_bench.settings import Settings

Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="The server to measure: http://127.0.0.1:8000.")
]
Engines = Annotated[
    list[str] | None,
    typer.Option("--engine", metavar="URL", help="An engine behind it, whose metrics are read. Repeatable."),
]
Gpus = Annotated[int | None, typer.Option("--gpus", min=1, help="GPUs behind the endpoint, for figures a GPU.")]
Backend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="For --stack: sglang, vllm, or another installed.")
]
EnginePython = Annotated[
    str | None, typer.Option("--engine-python", metavar="PATH", help="For --stack: Python of the engine's environment.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For --stack: plugin.option=value. Repeatable.")
]
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


def measure(given: dict[str, Any], users: Sequence[int], rate: str | None = None) -> Result:
    """Measure what the options ``given`` say, under each number of ``users``.

    Raises InputError for options that do not go together.
    """
    from optistack.errors import InputError

    if (given["endpoint"] is None) == (not given["stack"]):
        raise InputError("What is to be measured?", fix="Give either --endpoint URL or --stack FILE.")
    settings = settings_of(given)
    from optistack.cli import screen
    from optistack_bench.load import Loop

    loops = [Loop(users=number, rate=_rate(rate), prefill_only=given["prefill_only"]) for number in users]
    out = _folder(given["out"])
    with screen.ScreenProgress() as progress:
        if given["endpoint"] is not None:
            from optistack_bench.run import run_endpoint

            target = _target(given["endpoint"], given["engine"], given["gpus"])
            return run_endpoint(target, settings, loops, out=out, progress=progress)
        from optistack_bench.on_stack import run_stacks

        return run_stacks(
            _choices(given),
            settings,
            loops,
            baseline=not given["no_baseline"],
            allow_degraded=given["allow_degraded"],
            out=out,
            progress=progress,
        )


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


def _choices(given: dict[str, Any]) -> list[options.Choice]:
    """The stacks that were named, each with what goes for all of them."""
    return [
        options.Choice(
            stack=path,
            backend=given["backend"],
            engine_python=given["engine_python"],
            settings=tuple(given["setting"] or ()),
        )
        for path in given["stack"]
    ]


def _target(endpoint: str, engines: list[str] | None, gpus: int | None) -> Any:
    from optistack_bench.measure import Target

    return Target("endpoint", endpoint.rstrip("/"), tuple(engines or ()), gpus=gpus or 1)


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
