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

    Returns when every process of theirs is gone. What was running is left to read: log, plan and receipt.
    """
    from optistack.apply.deployment import find, list_damaged, list_deployments, stop
    from optistack.cli import screen
    from optistack.paths import check_deployments_dir

    check_deployments_dir()

    chosen = [find(name) for name in names] if names else list_deployments()
    running = [deployment.alive() for deployment in chosen]  # before any is stopped: one may be damaged
    stopped = []
    with screen.ScreenProgress() as progress:
        for deployment, alive in zip(chosen, running, strict=True):
            if alive or names:
                progress.step(f"Stopping {deployment.name}")
            if stop(deployment):
                stopped.append(deployment.name)
    if json:
        screen.print_json({"stopped": stopped})
    elif not stopped:
        print("Nothing was running.")
    else:
        print(f"Stopped {', '.join(stopped)}.")
    for deployment in [] if names else list_damaged():
        screen.note(str(deployment.damaged(deployment.folder.state_file)))
