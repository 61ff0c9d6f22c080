"""What the engine's own argument resolution made of the launch."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import Entries, heading, indented, joined, reason
from optistack.preflight import Preflight, Verdict

STYLES = {Verdict.ACCEPTED: "green", Verdict.REJECTED: "bold red", Verdict.NOT_RUN: "yellow"}


def preflight_view(preflight: Preflight | None, *, wide: bool) -> Iterator[RenderableType]:
    """Nothing when the engine was not asked to be asked."""
    if preflight is None:
        return
    faked = f"with a faked {preflight.gpu_faked}" if preflight.gpu_faked else ""
    yield heading("Preflight", joined([preflight.against, faked]))
    rules = f"explained by {joined(preflight.explained_by)}" if preflight.explained_by else ""
    yield indented(Text.assemble((preflight.verdict.value, STYLES[preflight.verdict])), 2)
    if preflight.message:
        yield indented(Text(preflight.message), 6)
    if rules:
        yield indented(reason(rules), 6)
    entries = Entries(wide=wide)
    for change in preflight.changes:
        told = f"explained by {joined(change.explained_by)}" if change.explained_by else "no rule tells of it"
        became = Text(f"{change.asked} -> {change.becomes}")
        cells = [Text("changed", "yellow"), Text(change.name, "bold"), became]
        entries.add(cells, [reason(change.source, told)])
    for what in preflight.unresolved:
        entries.add([Text("unresolved", "dim"), what])
    yield from entries.render()
