"""``optistack schema``."""

from __future__ import annotations

from typing import Annotated

import typer

from optistack.cli.commands import new_app

app = new_app()


@app.command()
def schema(
    json: Annotated[bool, typer.Option("--json", hidden=True, help="It is JSON already.")] = False,
) -> None:
    """Print the JSON Schema of a stack file, for editors.

    The options of the installed plugins are in it. For editors with the YAML language server, save it and begin the
    stack file with: # yaml-language-server: $schema=optistack.schema.json
    """
    from optistack.cli import screen
    from optistack.host import Host
    from optistack.stack.schema import stack_schema

    screen.print_json(stack_schema(Host.from_environment()))
