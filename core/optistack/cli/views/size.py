"""The tensor-parallel choices of a stack, gross and planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from optistack.cli.views.common import heading
from optistack.memory.budget import MemoryBudget
from optistack.memory.size import SizeRow

COLUMNS = ("", "HBM in all", "after weights", "KV a GPU", "KV tokens", "sessions", "")


def size_view(rows: Sequence[SizeRow], title: str, gross_hbm_gb: float) -> Iterator[RenderableType]:
    """A line for each choice, in 1e9 bytes like the data sheets; what does not work says why below."""
    yield heading("Size", title)
    yield Text()
    yield heading("Gross", f"{gross_hbm_gb:g} GB a GPU, nothing reserved")
    yield _table([(row.tensor_parallel, row.gross) for row in rows])
    yield Text()
    yield heading("Planned", "what the driver reports, less what the engine takes")
    yield _table([(row.tensor_parallel, row.planned) for row in rows])
    reasons = [(row.tensor_parallel, row.reason) for row in rows if row.reason]
    if reasons:
        yield Text()
    for tensor_parallel, reason in reasons:
        yield Text.assemble((f"TP{tensor_parallel}: ", "bold"), (reason, "red"))


def _table(budgets: Sequence[tuple[int, MemoryBudget | None]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for index, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if index in (0, len(COLUMNS) - 1) else "right", no_wrap=True)
    for tensor_parallel, budget in budgets:
        table.add_row(f"TP{tensor_parallel}", *(_cells(budget) if budget else ["-"] * (len(COLUMNS) - 1)))
    return table


def _cells(budget: MemoryBudget) -> list[RenderableType]:
    gpus = budget.tensor_parallel
    whole = budget.capacity_bytes * gpus
    after = whole - budget.weight_bytes * gpus
    return [
        _gb(whole),
        Text(_gb(after), style="red" if after < 0 else ""),
        _gb(budget.kv_bytes),
        f"{budget.kv_tokens:,}",
        "-" if budget.sessions is None else f"{budget.sessions:,}",
        _verdict(budget),
    ]


def _verdict(budget: MemoryBudget) -> Text:
    if budget.feasible:
        return Text("fits", style="green")
    short = f"short by {_gb(budget.shortfall_bytes)}" if budget.shortfall_bytes else "does not fit"
    return Text(short, style="red")


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
