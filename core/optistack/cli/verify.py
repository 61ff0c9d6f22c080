"""``optistack verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optistack.cli import options
from optistack.cli.commands import new_app

app = new_app()


@app.command()
def verify(
    endpoint: Annotated[str, typer.Option("--endpoint", metavar="URL", help="The engine: http://127.0.0.1:8000.")],
    stack: options.Stack = options.DEFAULT_STACK,
    backend: options.Backend = None,
    node: options.Node = None,
    engine_python: options.EnginePython = None,
    engine_version: options.EngineVersion = None,
    plugin: options.Plugins = None,
    no_plugin: options.Without = None,
    setting: options.Set = None,
    engine_arg: options.EngineArgs = None,
    allow_degraded: options.AllowDegraded = False,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="The engine's log; it proves what nothing else does.")
    ] = None,
    api_key_variable: Annotated[
        str, typer.Option("--api-key-variable", metavar="NAME", help="Variable with the key that the engine asks for.")
    ] = options.API_KEY_VARIABLE,
    json: options.Json = False,
) -> None:
    """Check an engine that is already running against a stack.

    It may have been started by anybody. The stack is planned for the version that the engine has; exit code 1 when
    the engine does something else.
    """
    import os

    from optistack.cli import screen
    from optistack.cli.receipts import failure
    from optistack.cli.views.receipt import receipt_view
    from optistack.cli.views.rules import refusal
    from optistack.cli.workbench import open_stack
    from optistack.errors import CheckFailedError, InputError
    from optistack.verify.endpoint import Endpoint, first_answer_of
    from optistack.verify.verify import verify

    chosen = options.choice(stack, backend, node, engine_python, engine_version, plugin, no_plugin, setting, engine_arg)
    workbench = open_stack(chosen)
    try:
        text = log.read_text(encoding="utf-8", errors="replace") if log else None
    except OSError as error:
        raise InputError(f"The log {log} cannot be read: {error.strerror}.", fix="Give the engine's log.") from error
    with (
        Endpoint(endpoint, api_key=os.environ.get(api_key_variable)) as client,
        screen.ScreenProgress() as progress,
    ):
        progress.step(f"Planning for the engine at {first_answer_of(endpoint)}")
        plan = workbench.for_engine_at(client).plan(allow_degraded=allow_degraded, progress=progress)
        progress.step(f"Checking {endpoint}")
        receipt = verify(plan, client, workbench.host, workbench.backend, log=text)
    if json:
        screen.print_json(receipt)
    else:
        screen.show(*receipt_view(receipt, wide=screen.is_pipe()))
    if plan.refused:
        screen.note(f"Besides, optistack would not start this stack: {refusal(plan)[0]}")
    if not receipt.passed:
        screen.print_error(
            failure([receipt], "the stack"),
            "Start it with `optistack apply`, or with the launch that `optistack plan --script -` prints.",
        )
        raise typer.Exit(CheckFailedError.exit_code)
