"""``optistack engines``."""

from __future__ import annotations

from optistack.cli import options
from optistack.cli.commands import new_app

app = new_app()


@app.command()
def engines(json: options.Json = False) -> None:
    """List the engines that are installed, can be, or are known by their flags."""
    from optistack.cli import screen
    from optistack.engines.known import known_engines

    if json:
        screen.print_json(known_engines())
        return
    from optistack.cli.views.engines import engines_view

    screen.show(*engines_view(known_engines()))
