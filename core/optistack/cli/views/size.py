"""The tensor-parallel choices of a stack, gross and planned side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from optistack.cli.views.common import heading
from optistack.memory.budget import MemoryBudget
from optistack.memory.size import SizeRow


def size_view(rows: Sequence[SizeRow], title: str, gross_hbm_gb: float, *, wide: bool) -> Iterator[RenderableType]:
    """One line a choice, in 1e9 bytes like the data sheets; what does not work says why below the table."""
    yield heading("Size", title)
    gross, planned = f"gross ({gross_hbm_gb:g} GB a GPU)", "planned (by the driver, less reserves)"
    for name, pick in ((gross, lambda row: row.gross), (planned, lambda row: row.planned)):
        yield Text()
        yield Text(name, style="bold")
        table = _table()
        for row in rows:
            budget = pick(row)
            if budget is None:
                table.add_row(f"TP{row.tensor_parallel}", *["-"] * 5, "no layout")
            else:
                table.add_row(f"TP{row.tensor_parallel}", *_cells(budget))
        yield table
    reasons = [(row.tensor_parallel, row.reason) for row in rows if row.reason]
    if reasons:
        yield Text()
    for tensor_parallel, reason in reasons:
        yield Text.assemble((f"TP{tensor_parallel}: ", "bold"), (reason, "red"))


def _table() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for column in ("", "HBM in all", "after weights", "KV a GPU", "KV tokens", "sessions", ""):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    return table


def _cells(budget: MemoryBudget) -> list[RenderableType]:
    gpus = budget.tensor_parallel
    whole = budget.capacity_bytes * gpus
    after = whole - budget.weight_bytes * gpus
    cells: list[RenderableType] = [
        _gb(whole),
        Text(_gb(after), style="red" if after < 0 else ""),
        _gb(budget.kv_bytes),
        f"{budget.kv_tokens:,}",
        "" if budget.sessions is None else f"{budget.sessions:,}",
    ]
    verdict = Text("fits", style="green")
    if not budget.feasible:
        verdict = Text(f"short by {_gb(budget.shortfall_bytes)}" if budget.shortfall_bytes else "does not fit", "red")
    return [*cells, verdict]


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
