"""What a person reads of a conversion: bytes by component, and errors by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optistack_quant_nvfp4.convert.sizes import Size

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 10


def size_table(sizes: Sequence[Size]) -> Table:
    table = _table("component", "layers", "to NVFP4", "before", "after", "GiB before", "GiB after")
    for one in sizes:
        table.add_row(
            one.component,
            str(one.layers),
            str(one.converted) if one.converted else "-",
            one.before,
            one.after,
            _gib(one.bytes_before),
            _gib(one.bytes_after),
        )
    before, after = sum(one.bytes_before for one in sizes), sum(one.bytes_after for one in sizes)
    table.add_row("all", "", "", "", "", _gib(before), _gib(after))
    return table


def error_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The worst of ``rows``, which come worst first."""
    table = _table("layer (worst first)", "SQNR dB", "max error", "max value")
    for row in rows[:SHOWN]:
        sqnr = "exact" if row["sqnr_db"] is None else f"{row['sqnr_db']:.2f}"
        table.add_row(str(row["layer"]), sqnr, f"{row['max_error']:.4g}", f"{row['max_value']:.4g}")
    return table


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in ("before", "after") else "right")
    return table


def _gib(count: int) -> str:
    return f"{count / 2**30:.3f}"
