"""Pieces that the views share: headings, aligned columns, reasons, sizes in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GIB = 2**30
MIB = 2**20

SEVERITY_STYLES = {"error": "bold red", "override": "yellow", "silent": "yellow", "degraded": "yellow", "note": "cyan"}


LONGEST_ALIGNED = 36
LONGEST_ALIGNED_WIDE = 60
"""Columns of a cell that its neighbours above and below are aligned to, in a terminal and in a pipe: one long value
must not push everybody else's next cell over the edge."""


def heading(text: str, rest: str = "") -> Text:
    return Text.assemble((text, "bold"), ("  " + rest if rest else "", "dim"))


def columns(*widths: int | None) -> Table:
    """A table without lines. A width is the most that a column takes; ``None`` is as wide as its content."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for width in widths:
        table.add_column(overflow="fold", no_wrap=width is None, max_width=width)
    return table


def indented(part: RenderableType, by: int = 2) -> Padding:
    return Padding(part, (0, 0, 0, by), expand=False)


class Entries:
    """Things of a few aligned cells, each with lines of reasons.

    In a terminal the reasons stand below the thing, over the whole width; in a pipe behind it, on one line.
    """

    def __init__(self, *, wide: bool) -> None:
        self._wide = wide
        self._entries: list[tuple[list[Text], list[Text]]] = []

    def add(self, cells: Sequence[Text | str], reasons: Iterable[Text] = ()) -> None:
        shown = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self._entries.append((shown, [reason for reason in reasons if reason]))

    def render(self) -> Iterator[RenderableType]:
        widths: list[int] = []
        for cells, _ in self._entries:
            for index, cell in enumerate(cells):
                longest = LONGEST_ALIGNED_WIDE if self._wide or index == 0 else LONGEST_ALIGNED
                length = min(cell.cell_len, longest)
                widths[index:] = [max([length, *widths[index : index + 1]]), *widths[index + 1 :]]
        for index, (cells, reasons) in enumerate(self._entries):
            line = Text("  ").join(_padded(cell, width) for cell, width in zip(cells, widths, strict=False))
            if self._wide:
                yield indented(Text("  ").join([line, *reasons]))
                continue
            yield indented(line)
            following = self._entries[index + 1][1] if index + 1 < len(self._entries) else None
            if reasons != following:  # neighbours with the same reasons share them
                yield from (indented(reason, 6) for reason in reasons)


def _padded(cell: Text, width: int) -> Text:
    cell = cell.copy()
    cell.pad_right(max(0, width - cell.cell_len))
    return cell


def reason(*parts: str, reference: str = "", style: str = "dim") -> Text:
    """The parts that are not empty, with a reference in brackets behind them; files below here by their short name."""
    text = joined(parts, ": ")
    reference = reference.removeprefix(f"{Path.cwd()}/")
    return Text(joined([text, f"[{reference}]" if reference else ""], " "), style)


def size_text(size: int) -> str:
    """Bytes as GiB, or as MiB below one GiB: ``132.9 GiB``, ``47 MiB``."""
    return f"{size / GIB:,.1f} GiB" if abs(size) >= GIB else f"{size / MIB:,.0f} MiB"


def joined(parts: Iterable[str], separator: str = ", ") -> str:
    """The parts that are not empty."""
    return separator.join(part for part in parts if part)
