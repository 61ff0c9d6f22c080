"""Options that ``optistack bench`` and ``optistack bench sweep`` share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from optistack.cli import options

Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="The server to measure: http://127.0.0.1:8000.")
]
Engines = Annotated[
    list[str] | None,
    typer.Option("--engine", metavar="URL", help="For --endpoint: an engine behind it, to read metrics. Repeatable."),
]
Gpus = Annotated[int | None, typer.Option("--gpus", min=1, help="For --endpoint: GPUs behind it, for figures a GPU.")]
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
NoBaseline = Annotated[
    bool, typer.Option("--no-baseline", help="For --stack: do not start it without its plugins first.")
]
Workload = Annotated[
    str, typer.Option("--workload", metavar="NAME", help="sessions, trace, 3k-100 or 50k-200 (45k of it shared).")
]
Trace = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Recorded sessions or Mooncake's (.jsonl, .jsonl.gz).")
]
Sessions = Annotated[
    int | None,
    typer.Option(
        "--sessions",
        min=1,
        max=1_000_000,
        help="Sessions to play. Unless given: two a user; with --rate, the whole trace.",
    ),
]
Turns = Annotated[int | None, typer.Option("--turns", min=1, max=1000, help="The first turns of each session only.")]
Domain = Annotated[list[str] | None, typer.Option("--domain", metavar="NAME", help="code, prose or made. Repeatable.")]
Divide = Annotated[
    str | None, typer.Option("--divide", metavar="N", help="Divide every count of tokens: a power of two, or auto.")
]
ThinkLimit = Annotated[float, typer.Option("--think-limit", min=0, help="Seconds to which pauses are cut.")]
Repeats = Annotated[int, typer.Option("--repeats", min=1, max=100, help="Repeats, for intervals.")]
MinSeconds = Annotated[
    float,
    typer.Option("--min-seconds", min=0, max=86_400, help="With users: begin further sessions until so long is over."),
]
Warmup = Annotated[int, typer.Option("--warmup", min=0, max=1000, help="Requests of each user before anything counts.")]
Seed = Annotated[int, typer.Option("--seed", help="Of everything that is drawn.")]
PrefillOnly = Annotated[bool, typer.Option("--prefill-only", help="Ask for one token only.")]
Header = Annotated[str, typer.Option("--session-header", metavar="NAME", help="Header with the session's name.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds that a request may take.")]
Context = Annotated[int | None, typer.Option("--context", min=1, help="The model's context, if the server says none.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Keep result.json and requests.jsonl there.")]
MaxErrors = Annotated[
    float, typer.Option("--max-errors", min=0, max=1, metavar="SHARE", help="Of a repeat's requests, that may fail.")
]

Chat = Annotated[
    bool, typer.Option("--chat", help="Messages to /v1/chat/completions, with the server's own answers as history.")
]
Tools = Annotated[bool, typer.Option("--tools", help="With --chat: offer tools, so that calls of them are parsed.")]


@dataclass(frozen=True)
class Given:
    """What was given on the command line, beside the load."""

    endpoint: Endpoint = None
    engine: Engines = None
    gpus: Gpus = None
    stack: Stacks = None
    backend: Backend = None
    engine_python: EnginePython = None
    setting: Set = None
    no_baseline: NoBaseline = False
    allow_degraded: options.AllowDegraded = False
    workload: Workload = "sessions"
    trace: Trace = None
    sessions: Sessions = None
    turns: Turns = None
    domain: Domain = None
    chat: Chat = False
    tools: Tools = False
    divide: Divide = None
    think_limit: ThinkLimit = 30.0
    repeats: Repeats = 3
    min_seconds: MinSeconds = 0.0
    warmup: Warmup = 1
    seed: Seed = 0
    prefill_only: PrefillOnly = False
    session_header: Header = "X-Session-Id"
    timeout: Timeout = 600.0
    model_context: Context = None
    max_errors: MaxErrors = 0.0
    out: Out = None


def takes_given(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with the fields of ``Given`` as options in the place of its parameter ``given``."""
    fields = inspect.signature(Given).parameters
    hints = get_type_hints(Given, include_extras=True)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        shared = Given(**{name: values.pop(name) for name in fields})
        command(**values, given=shared)

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if name == "given":
            parameters += [one.replace(annotation=hints[key]) for key, one in fields.items()]
        else:
            parameters.append(parameter)
    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    # Typer reads both.
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]  # what inspect.signature looks for
    run.__annotations__ = {one.name: one.annotation for one in keywords}
    return run
