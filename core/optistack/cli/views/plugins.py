"""The installed plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import columns
from optistack.errors import how_to_install

PREFIX = "optistack_"


def plugins_view(entries: Sequence[Mapping[str, Any]], *, wide: bool) -> Iterator[RenderableType]:
    if not entries:
        yield Text(f"No plugin is installed. {how_to_install('kv-fp8')}")
        return
    table = columns(None, None, None, None if wide else 100)
    for entry in entries:
        told = Text(entry["summary"] or "")
        gap = "  " if wide else "\n"
        if entry["hooks"]:
            hooks = ", ".join(hook.removeprefix(PREFIX) for hook in entry["hooks"])
            told.append(f"{gap}hooks: {hooks}", "dim")
        if entry["commands"]:
            told.append(f"{gap}commands: {', '.join(f'optistack {name}' for name in entry['commands'])}", "dim")
        if entry["error"]:
            told.append(f"{gap if told else ''}error: {entry['error']}", "red")
        name = Text(entry["name"], "red" if entry["error"] else "bold")
        table.add_row(name, entry["version"] or "-", entry["domain"] or "-", told)
    yield table
