"""``optistack size``."""

from __future__ import annotations

from typing import Annotated

import typer

from optistack.cli import options
from optistack.cli.commands import new_app

app = new_app()

LARGEST_GB = 1e6


@app.command()
def size(
    stack: options.Stack = options.DEFAULT_STACK,
    backend: options.Backend = None,
    node: options.Node = None,
    engine_python: options.EnginePython = None,
    engine_version: options.EngineVersion = None,
    plugin: options.Plugins = None,
    no_plugin: options.Without = None,
    setting: options.Set = None,
    hbm_gb: Annotated[
        float | None, typer.Option("--hbm-gb", metavar="GB", help="Gross size of a GPU; by default as it is sold.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Compare tensor-parallel sizes: memory, KV tokens, sessions that fit.

    Twice: gross, with nothing reserved, as published arithmetic goes; and planned, with the bytes that the driver
    reports less what the engine takes.
    """
    from optistack.cli import screen
    from optistack.cli.workbench import open_stack
    from optistack.errors import InputError
    from optistack.plan.size import sizes

    if hbm_gb is not None and not 0 < hbm_gb <= LARGEST_GB:
        raise InputError(f"--hbm-gb {hbm_gb:g} is no size of a GPU.", fix="Give it in GB: 180.")
    chosen = options.choice(stack, backend, node, engine_python, engine_version, plugin, no_plugin, setting)
    workbench = open_stack(chosen)
    gross_gb, rows = sizes(workbench.spec, workbench.host, workbench.backend, gross_hbm_gb=hbm_gb)
    if json:
        screen.print_json({"gross_hbm_gb": gross_gb, "rows": [row.model_dump(mode="json") for row in rows]})
        return
    from optistack.cli.views.size import size_view

    spec = workbench.spec
    request = spec.workload.input_tokens + spec.workload.output_tokens
    title = f"{spec.model.checkpoint} with {', '.join(spec.plugins) or 'no plugins'}; sessions of {request:,} tokens"
    screen.show(*size_view(rows, title, gross_gb))
