"""Pieces that the views share: headings, aligned columns, sizes in words."""

from __future__ import annotations

from collections.abc import Iterable

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GIB = 2**30
MIB = 2**20

SEVERITY_STYLES = {"error": "bold red", "override": "yellow", "silent": "yellow", "degraded": "yellow", "note": "dim"}


def heading(text: str, rest: str = "") -> Text:
    return Text.assemble((text, "bold"), ("  " + rest if rest else "", "dim"))


def columns(*widths: int | None) -> Table:
    """A table without lines. A width is the most that a column takes; ``None`` is as wide as its content."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for width in widths:
        table.add_column(overflow="fold", no_wrap=width is None, max_width=width)
    return table


def indented(table: Table, by: int = 2) -> Padding:
    return Padding(table, (0, 0, 0, by), expand=False)


def size_text(size: int) -> str:
    """Bytes as GiB, or as MiB below one GiB: ``132.9 GiB``, ``47 MiB``."""
    return f"{size / GIB:,.1f} GiB" if abs(size) >= GIB else f"{size / MIB:,.0f} MiB"


def joined(parts: Iterable[str], separator: str = ", ") -> str:
    """The parts that are not empty."""
    return separator.join(part for part in parts if part)


def because(why: str, reference: str, *, wide: bool) -> Text:
    """A reason, with its reference behind it or below it."""
    if not reference:
        return Text(why)
    return Text.assemble(why, ("  " if wide else "\n") if why else "", (reference, "dim"))
