"""The settings of a plan: what, who wished for it, why; and below it what others said about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import Entries, heading, reason, size_text
from optistack.settings import Origin, Value
from optistack.settings.resolved import ResolvedStack


def settings_view(stack: ResolvedStack, *, wide: bool) -> Iterator[RenderableType]:
    yield heading("Settings")
    entries = Entries(wide=wide)
    for path, value in stack.values():
        shown = shown_value(path, value.value) if value.is_set else value.describe()
        first, *others = _origins(value)
        # The stack file needs no reason of its own.
        said_enough = first.source == "stack" and not wide
        reasons = [] if said_enough else [reason(first.why, reference=first.reference)]
        for other in others:
            reasons.append(reason(f"{other.source} says {other.said}", other.why, reference=other.reference))
        entries.add([path, Text(shown, "bold"), Text(first.source, "cyan")], reasons)
    yield from entries.render()


def _origins(value: Value[Any]) -> list[Origin]:
    """Everybody who has an opinion, the one who decided it first."""
    first = value.wishes[0] if value.wishes else Origin(source="plan")
    return [first, *(origin for origin in value.origins if origin != first)]


def shown_value(path: str, value: Any) -> str:
    """The value of the setting at ``path`` as a reader likes it: ``on``, ``262,144``, ``200.0 GiB``."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and path.endswith("_bytes"):
        return size_text(value)
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
