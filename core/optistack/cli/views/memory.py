"""The memory budget: a bar for one GPU, its lines, and what fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from optistack.cli.views.common import columns, heading, indented, size_text
from optistack.facts.node import NodeFacts
from optistack.memory.budget import MemoryBudget
from optistack.memory.lines import MemoryLine
from optistack.stack.spec import WorkloadSection

GLYPHS = {"weights": ("█", "blue"), "plugins": ("▓", "magenta"), "engine": ("▒", "yellow"), "KV": ("░", "green")}
"""Different without colour too."""

BAR_COLUMNS = 64


def memory_view(
    budget: MemoryBudget, node: NodeFacts, workload: WorkloadSection, *, wide: bool
) -> Iterator[RenderableType]:
    yield _title(budget, node)
    yield Text("  ").append_text(memory_bar(budget))
    table = columns(None, None, None, None if wide else 80)
    _group(table, "weights", budget.weights, budget.capacity_bytes)
    _group(table, "plugins", budget.charges, budget.capacity_bytes)
    _group(table, "engine", budget.reserves, budget.capacity_bytes)
    _row(table, "KV", budget.kv_bytes, budget.capacity_bytes, kv_sentence(budget, workload))
    unused = budget.capacity_bytes - budget.taken_bytes - budget.kv_bytes
    if unused > 0:
        table.add_row("  free", _right(size_text(unused)), _share(unused, budget.capacity_bytes), "")
    yield indented(table)
    yield from _host(budget)
    for note in budget.notes:
        yield Text(f"  not counted: {note}", style="yellow")
    if budget.reason:
        yield Text(f"  {budget.reason}", style="bold red")


def memory_bar(budget: MemoryBudget, width: int = BAR_COLUMNS) -> Text:
    """One GPU's memory as ``width`` cells; what is too much sticks out in red."""
    parts = {
        "weights": budget.weight_bytes,
        "plugins": sum(line.bytes for line in budget.charges),
        "engine": sum(line.bytes for line in budget.reserves),
        "KV": budget.kv_bytes,
    }
    bar = Text()
    filled = 0
    reached = 0
    for name, size in parts.items():
        reached += size
        cells = min(round(reached / budget.capacity_bytes * width), width) - filled
        glyph, style = GLYPHS[name]
        bar.append(glyph * cells, style=style)
        filled += cells
    bar.append("·" * (width - filled), style="dim")
    over = reached - budget.capacity_bytes
    return bar.append(f" + {size_text(over)} too much", style="bold red") if over > 0 else bar


def kv_sentence(budget: MemoryBudget, workload: WorkloadSection) -> str:
    """``890,240 tokens at 35,136 bytes; 8 requests of 100,500 tokens fit, 5 are wanted``."""
    text = f"{budget.kv_tokens:,} tokens of {budget.bytes_per_kv_token:,} bytes ({budget.kv_dtype})"
    if budget.sessions is None:
        return text
    request = workload.input_tokens + workload.output_tokens
    return f"{text}; {budget.sessions} requests of {request:,} fit, {workload.concurrency} wanted"


def _title(budget: MemoryBudget, node: NodeFacts) -> Text:
    if budget.device == "cpu":
        return heading("Memory", f"RAM of one rank of {budget.tensor_parallel}: {size_text(budget.capacity_bytes)}")
    source = "sold as" if budget.mode == "gross" else "by the driver"
    name = node.gpu.name if node.gpu else "GPU"
    return heading("Memory", f"one of {budget.tensor_parallel} x {name}, {size_text(budget.capacity_bytes)} {source}")


def _group(table: Table, name: str, lines: Iterable[MemoryLine], capacity: int) -> None:
    lines = tuple(lines)
    if not lines:
        return
    _row(table, name, sum(line.bytes for line in lines), capacity, "")
    for line in lines:
        table.add_row(f"    {line.label}", _right(size_text(line.bytes), "dim"), "", Text(line.why, style="dim"))


def _row(table: Table, name: str, size: int, capacity: int, why: str) -> None:
    glyph, style = GLYPHS[name]
    table.add_row(
        Text.assemble((glyph, style), f" {name}"), _right(size_text(size), "bold"), _share(size, capacity), why
    )


def _share(size: int, capacity: int) -> Text:
    return _right(f"{size / capacity:.1%}")


def _right(text: str, style: str = "") -> Text:
    return Text(text, style=style, justify="right")


def _host(budget: MemoryBudget) -> Iterator[RenderableType]:
    if budget.device == "cpu" and not budget.host:
        return
    yield heading("Host RAM", f"of one replica: {size_text(budget.host_capacity_bytes)}")
    table = columns(None, None, 80)
    for line in budget.host:
        table.add_row(line.label, _right(size_text(line.bytes)), Text(line.why, style="dim"))
    table.add_row("free", _right(size_text(budget.host_free_bytes)), "")
    yield indented(table)
