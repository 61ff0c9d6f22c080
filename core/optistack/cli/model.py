"""``optistack model``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optistack.cli import options
from optistack.cli.commands import new_app

app = new_app("Make a small checkpoint to try things with, or list those.")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Which: `optistack model list` shows them.")],
    engine_python: Annotated[
        str | None,
        typer.Option("--engine-python", metavar="PATH", help="A Python with torch and transformers to make it with."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Make a checkpoint in the cache; a stack file calls it cache:NAME.

    Does nothing when it is there already.
    """
    from optistack.cli import screen
    from optistack.engines.models import fetch_model
    from optistack.stack.references import resolve_python

    python = None if engine_python is None else Path(resolve_python(engine_python, Path.cwd()))
    with screen.ScreenProgress() as progress:
        folder = fetch_model(name, python=python, progress=progress)
    if json:
        screen.print_json({"name": name, "folder": str(folder)})
    else:
        print(f"{name}: {folder}")


@app.command(name="list")
def list_(json: options.Json = False) -> None:
    """List the checkpoints that can be fetched, and where those are that were."""
    from optistack.cli import screen
    from optistack.cli.views.engines import models_view
    from optistack.engines.models import MODELS
    from optistack.paths import models_dir

    models = [
        {"name": name, "folder": str(folder) if folder.is_dir() else None, "what": recipe.what}
        for name, recipe in MODELS.items()
        for folder in [models_dir() / name]
    ]
    if json:
        screen.print_json(models)
    else:
        screen.show(*models_view(models))
