"""The difference between two plans: ``+`` only in the other one, ``-`` only in this one, ``~`` another value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import MIB, columns, heading, indented, size_text
from optistack.plan.diff import Difference, Part

SIZE = " bytes"
"""How the names of figures in bytes end."""

TITLES = {
    Part.ENGINE: "Engine, node and model",
    Part.PLUGIN: "Plugins",
    Part.SETTING: "Settings",
    Part.MEMORY: "Memory of one GPU",
    Part.FLAG: "Flags",
    Part.VARIABLE: "Variables",
    Part.FILE: "Files",
    Part.FRONT: "Front",
    Part.RULE: "Rules that fired",
}


def diff_view(differences: Sequence[Difference], before: str, after: str, *, wide: bool) -> Iterator[RenderableType]:
    yield heading(f"{before} → {after}")
    if not differences:
        yield Text("  The plans are equal.")
    for part, group in groupby(differences, key=lambda difference: difference.part):
        yield Text()
        yield heading(TITLES[part])
        table = columns(None, None if wide else 40, None if wide else 100)
        for difference in group:
            table.add_row(*_row(difference))
        yield indented(table)


def _row(difference: Difference) -> tuple[Text, Text, Text]:
    name, sized = difference.name, difference.part is Part.MEMORY and difference.name.endswith(SIZE)
    if sized:
        name = name.removesuffix(SIZE)
    exact = sized and _sizes(difference)[0] == _sizes(difference)[1]
    before = _said(difference.before, difference.who_before, sized=sized, exact=exact)
    after = _said(difference.after, difference.who_after, sized=sized, exact=exact)
    if difference.before is None:
        return Text("+", "green"), Text(name, "green"), after
    if difference.after is None:
        return Text("-", "red"), Text(name, "red"), before
    return Text("~", "yellow"), Text(name), Text.assemble(before, " → ", after, (_change(difference), "dim"))


def _sizes(difference: Difference) -> tuple[str, ...]:
    values = (difference.before, difference.after)
    return tuple(size_text(int(value.replace(",", ""))) if value is not None else "" for value in values)


def _said(value: str | None, who: str, *, sized: bool, exact: bool) -> Text:
    """``exact``: two sizes that are one in GiB are told in MiB."""
    shown = " ".join((value or "").split())
    if sized and value is not None:
        size = int(value.replace(",", ""))
        shown = f"{size / MIB:,.1f} MiB" if exact else size_text(size)
    return Text.assemble(shown, (f" ({who})" if who else "", "dim"))


def _change(difference: Difference) -> str:
    """By how much a figure changed: ``  +12.5%``."""
    if difference.part is not Part.MEMORY:
        return ""
    before, after = (int((text or "0").replace(",", "")) for text in (difference.before, difference.after))
    return f"  {(after - before) / before:+.1%}" if before else ""
