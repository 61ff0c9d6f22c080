"""The settings of a plan: what, who wished for it, why; and below it what others said about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import because, columns, heading, indented, size_text
from optistack.settings import Origin, Value
from optistack.settings.resolved import ResolvedStack


def settings_view(stack: ResolvedStack, *, wide: bool) -> Iterator[RenderableType]:
    yield heading("Settings")
    table = columns(None, None if wide else 22, None, None if wide else 100)
    section = ""
    for path, value in stack.values():
        above, _, name = path.rpartition(".")
        if above != section and not wide:
            section = above
            table.add_row(Text(section, style="cyan"))
        first, *rest = _rows(path, value)
        label = path if wide else f"  {name}"
        table.add_row(label, Text(first[0], style="bold"), first[1].source, because(*_reason(first[1]), wide=wide))
        for said, origin in rest:
            mark = path if wide else ""
            table.add_row(mark, Text(said, style="dim"), origin.source, because(*_reason(origin), wide=wide))
    yield indented(table)


def _rows(path: str, value: Value[Any]) -> list[tuple[str, Origin]]:
    """The value with its first advocate, then everything else that was said about it."""
    shown = shown_value(path, value.value) if value.is_set else value.describe()
    first, *more = value.wishes or (Origin(source="plan"),)
    others = [origin for origin in value.origins if origin not in (first, *more)]
    return [(shown, first), *(("", origin) for origin in more), *((f"({o.said})", o) for o in others)]


def _reason(origin: Origin) -> tuple[str, str]:
    return origin.why, origin.reference


def shown_value(path: str, value: Any) -> str:
    """The value of the setting at ``path`` as a reader likes it: ``on``, ``262,144``, ``200.0 GiB``."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and path.endswith("_bytes"):
        return size_text(value)
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
