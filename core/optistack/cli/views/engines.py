"""Engines and models that are here or could be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import columns


def engines_view(engines: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    table = columns(None, None, None)
    for engine in engines:
        where = {
            "installed": engine["python"],
            "installable": f"not installed: optistack engine install {engine['name']}",
            "snapshot": "known by its flags: plans are checked against them",
        }[engine["state"]]
        table.add_row(Text(engine["name"], "bold"), engine["version"], where)
    yield table


def models_view(models: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    table = columns(None, None)
    for model in models:
        table.add_row(Text(model["name"], "bold"), model["folder"] or "not fetched")
        table.add_row("", Text(model["what"], "dim"))
    yield table
