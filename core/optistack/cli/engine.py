"""``optistack engine``."""

from __future__ import annotations

from typing import Annotated

import typer

from optistack.cli import options
from optistack.cli.commands import new_app

app = new_app("Install an engine into an environment of its own, or list those.")


@app.command()
def install(
    name: Annotated[str, typer.Argument(help="Which: `optistack engines` lists them.")],
    version: Annotated[str | None, typer.Option("--version", help="Another version than the usual.")] = None,
    allow_cuda_torch: Annotated[
        bool,
        typer.Option("--allow-cuda-torch", help="Take PyTorch's build for CUDA where there is none for the CPU."),
    ] = False,
    json: options.Json = False,
) -> None:
    """Install an engine into an environment of its own, in the cache.

    Does nothing when it is there already. An interrupted install leaves nothing behind.
    """
    from optistack.cli import screen
    from optistack.engines.install import install_engine

    with screen.ScreenProgress() as progress:
        environment = install_engine(name, version=version, allow_cuda_torch=allow_cuda_torch, progress=progress)
    if json:
        screen.print_json({**environment.model_dump(mode="json"), "python": str(environment.python)})
    else:
        print(f"{environment.name} {environment.version}: {environment.python}")


@app.command(name="list")
def list_(json: options.Json = False) -> None:
    """The same as `optistack engines`."""
    from optistack.cli.engines import engines

    engines(json)
