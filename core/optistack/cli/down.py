"""``optistack down``."""

from __future__ import annotations

from typing import Annotated

import typer

from optistack.cli import options
from optistack.cli.commands import new_app

app = new_app()


@app.command()
def down(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Which; every one without.")] = None,
    json: options.Json = False,
) -> None:
    """Stop deployments: those named, or all of them.

    Returns when every process of theirs is gone. What was running is left to read: log, plan and receipt. One whose
    state cannot be read is not stopped; where it still runs the exit code is 1. Files that a killed engine of theirs
    has left in /dev/shm, which would stay in RAM, are removed and named.
    """
    from optistack.apply.deployment import find, list_damaged, list_deployments, stop
    from optistack.cli import screen
    from optistack.errors import CheckFailedError
    from optistack.paths import check_deployments_dir

    check_deployments_dir()

    chosen = [find(name) for name in names] if names else list_deployments()
    running = [deployment.alive() for deployment in chosen]  # before any is stopped: one may be damaged
    stopped: list[str] = []
    removed: list[str] = []
    with screen.ScreenProgress() as progress:
        for deployment, alive in zip(chosen, running, strict=True):
            if alive or names:
                progress.step(f"Stopping {deployment.name}")
            before = deployment.state.removed
            if stop(deployment):
                stopped.append(deployment.name)
            removed += deployment.state.removed[len(before) :]
    damaged = [] if names else list_damaged()
    left = any(deployment.locked() for deployment in damaged)
    if json:
        screen.print_json({"stopped": stopped, "removed": removed})
    elif stopped:
        print(f"Stopped {', '.join(stopped)}.")
    elif not left:
        print("Nothing was running.")
    for file in removed:
        screen.note(f"Removed {file}, which a killed engine had left.")
    for deployment in damaged:
        screen.note(str(deployment.damaged(deployment.folder.state_file)))
    if left:
        raise typer.Exit(CheckFailedError.exit_code)
