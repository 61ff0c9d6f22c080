"""``optistack doctor``."""

from __future__ import annotations

import typer

from optistack.cli import options
from optistack.cli.commands import new_app

app = new_app()


@app.command()
def doctor(json: options.Json = False) -> None:
    """Check this machine, and say what to mend.

    Python, folders, disk, RAM, the GPU's driver, engines, checkpoints, ports and plugins. The exit code is 1 when
    something is wrong.
    """
    from optistack.cli import screen
    from optistack.doctor import examine

    with screen.ScreenProgress() as progress:
        progress.step("Examining this machine")
        checkups = examine()
    healthy = all(checkup.ok for checkup in checkups)
    if json:
        told = [{"name": c.name, "ok": c.ok, "says": c.says, "mend": c.mend} for c in checkups]
        screen.print_json({"ok": healthy, "checks": told})
    else:
        from optistack.cli.views.doctor import doctor_view

        screen.show(*doctor_view(checkups, wide=screen.is_pipe()))
    if not healthy:
        raise typer.Exit(1)
