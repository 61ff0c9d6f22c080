"""The deployments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import columns

STYLES = {
    "ready": "green",
    "starting": "yellow",
    "stopping": "yellow",
    "failed": "red",
    "damaged": "red",
    "stopped": "dim",
}


def status_view(
    entries: Sequence[Mapping[str, Any]], *, ended: Sequence[Mapping[str, Any]], wide: bool
) -> Iterator[RenderableType]:
    """``ended`` are those that are not shown."""
    if not entries:
        failed = ", ".join(entry["name"] for entry in ended if entry["phase"] == "failed")
        told = f"{len(ended)} ended{f', {failed} failed' if failed else ''}: optistack status --all" if ended else ""
        yield Text(f"Nothing is running. {told}".strip())
        return
    table = columns(None, None, None, None if wide else 100)
    for entry in entries:
        phase = Text(entry["phase"], STYLES[entry["phase"]])
        table.add_row(Text(entry["name"], "bold"), phase, "\n".join(entry["endpoints"]), _told(entry, wide=wide))
    yield table


def _told(entry: Mapping[str, Any], *, wide: bool) -> Text:
    gap = "  " if wide else "\n"
    if entry["started_at"] is None:
        return Text(entry["reason"], "red")
    receipts = "; ".join(receipt["counts"] for receipt in entry["receipts"]) or "not verified"
    parts = [(f"since {entry['started_at']}", "dim")]
    if entry["running"]:
        parts.insert(0, (f"receipt: {receipts}", "red" if entry["failed"] else ""))
    if entry["running"]:
        lost = [process for process in entry["processes"] if process["reason"]]
        parts[:0] = [(f"without {process['name']}: {process['reason']}", "red") for process in lost]
    parts += [(f"removed {file}, left by a killed engine", "dim") for file in entry["removed"]]
    if entry["reason"]:
        parts.insert(0, (entry["reason"], "red" if entry["phase"] == "failed" else ""))
    return Text(gap).join(Text(text, style) for text, style in parts)
