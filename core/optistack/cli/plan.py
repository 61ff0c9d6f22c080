"""``optistack plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optistack.cli import options
from optistack.cli.commands import new_app

if TYPE_CHECKING:
    from optistack.plan.plan import Plan

app = new_app()


@app.command()
def plan(
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
    diff: Annotated[
        Path | None, typer.Option("--diff", metavar="OTHER", help="Compare with another stack or lock file.")
    ] = None,
    lock: Annotated[Path | None, typer.Option("--lock", metavar="FILE", help="Write the plan to a lock file.")] = None,
    script: Annotated[
        Path | None, typer.Option("--script", metavar="FILE", help="Write the launch as a shell script; - prints it.")
    ] = None,
    preflight: Annotated[
        bool, typer.Option("--preflight", help="Ask the engine's own argument resolution what it makes of the launch.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show what a stack resolves to: settings, memory, rules and launch.

    Nothing is started. A plan that cannot work is shown all the same, with the reason last and exit code 2.
    A --preflight that could not run is exit code 1.
    """
    from optistack.cli import screen
    from optistack.cli.workbench import open_stack
    from optistack.errors import InputError

    to_stdout = script == Path("-")
    if to_stdout and json:
        raise InputError("--json and --script - both print to stdout.", fix="Write the script to a file.")
    if lock == Path("-"):
        raise InputError("--lock - names no file.", fix="Name one, or have --json print the plan.")
    chosen = options.choice(stack, backend, node, engine_python, engine_version, plugin, no_plugin, setting, engine_arg)
    with screen.ScreenProgress() as progress:
        made = open_stack(chosen).plan(allow_degraded=allow_degraded, preflight=preflight, progress=progress)
    # Files first: a reader of --json gets one document, the plan or the reason why a file could not be written.
    notes = []
    if script is not None and not to_stdout:
        _write_script(made, script)
        notes.append(f"The launch is in {script}.{_of_secrets(made)}")
    if lock is not None and not made.refused:
        from optistack.plan.lock import write_lock

        write_lock(made, lock)
        notes.append(f"Locked in {lock}; `optistack apply --lock {lock}` starts exactly this.{_of_secrets(made)}")
    if diff is not None:
        _show_diff(made, diff, chosen, stack, json=json)
    elif json:
        from optistack.secrets import json_shown

        screen.print_json(json_shown(made.model_dump(mode="json")))
    elif not to_stdout:
        _show(made)
    if to_stdout:
        _write_script(made, None)
    for text in notes:
        screen.note(text)
    if made.refused:
        from optistack.cli.views.rules import refusal
        from optistack.errors import PlanRefusedError

        screen.print_error(*refusal(made))
        raise typer.Exit(PlanRefusedError.exit_code)
    if preflight:
        _require_asked(made)


def _require_asked(made: Plan) -> None:
    """Raise CheckFailedError when the preflight that was asked for did not run."""
    from optistack.errors import CheckFailedError
    from optistack.preflight import Verdict

    asked = made.preflight
    if asked is None or asked.verdict is not Verdict.NOT_RUN:
        return
    raise CheckFailedError(
        f"The preflight did not run: {asked.message}.",
        fix="Install that engine (`optistack engine install`), give another one's Python with --engine-python, "
        "or pin an installed version with --engine-version.",
    )


def _show(made: Plan) -> None:
    from optistack.cli import screen
    from optistack.cli.views.plan import plan_view

    screen.show(*plan_view(made, wide=screen.is_pipe()))


def _show_diff(made: Plan, other: Path, chosen: options.Choice, name: Path, *, json: bool) -> None:
    import dataclasses

    from optistack.cli import screen
    from optistack.cli.views.diff import diff_view
    from optistack.cli.workbench import open_stack
    from optistack.plan.diff import diff_plans
    from optistack.plan.lock import is_lock, read_lock

    # The other stack is planned for the backend, node and engine of this command; -p and --set are this one's alone.
    bare = dataclasses.replace(chosen, stack=other, plugins=(), without=(), settings=())
    theirs = read_lock(other) if is_lock(other) else open_stack(bare, otherwise=made.engine.backend).plan()
    found = diff_plans(theirs, made)
    if json:
        screen.print_json([difference.model_dump(mode="json") for difference in found])
    else:
        screen.show(*diff_view(found, str(other), str(name), wide=screen.is_pipe()))


def _write_script(made: Plan, path: Path | None) -> None:
    from optistack.cli.stdout import print_exactly
    from optistack.engines.environment import installed_engines
    from optistack.files import write_file
    from optistack.plan.script import script
    from optistack.secrets import secrets_of

    here = next((engine for engine in installed_engines() if str(engine.python) == made.engine.python), None)
    text = script(made, engine_env=here.env if here else {})
    if path is None:
        print_exactly(text)
        return
    write_file(path, text, mode=0o700 if secrets_of(made) else 0o755)


def _of_secrets(made: Plan) -> str:
    """What to know of a file that starts the plan."""
    from optistack.secrets import secrets_of

    names = secrets_of(made)
    return f" It holds the secret of {', '.join(names)} in clear, and only you can read it." if names else ""
