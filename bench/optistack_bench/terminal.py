"""A result in a terminal or a pipe: a line for each point, and what has to be said about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from optistack_bench.notes import notes
from optistack_bench.result import Point, Result
from optistack_bench.statistics import TAILS, Estimate, values_needed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from optistack_bench.compare import Change

COLUMNS = (
    ("TTFT p50", "ttft_s_p50", 1000, "ms"),
    ("p95", "ttft_s_p95", 1000, ""),
    ("p99", "ttft_s_p99", 1000, ""),
    ("ITL p50", "itl_s_p50", 1000, "ms"),
    ("p95", "itl_s_p95", 1000, ""),
    ("p99", "itl_s_p99", 1000, ""),
    ("tokens/s/user", "user_tokens_s_p50", 1, ""),
    ("tokens/min/GPU", "total_tokens_min_gpu", 1, ""),
    ("out/min/GPU", "output_tokens_min_gpu", 1, ""),
    ("hits", "hit_rate_usage", 100, "%"),
    ("possible", "hit_rate_possible", 100, "%"),
    ("accepted", "acceptance_length", 1, ""),
    ("queue", "engine_waiting", 1, ""),
    ("errors", "errors", 1, ""),
)


def result_view(result: Result) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("target", "load"):
        table.add_column(name)
    for name, *_ in COLUMNS:
        table.add_column(name, justify="right")
    for point in result.points:
        cells = (cell(point.estimate(figure), scale, unit) for _, figure, scale, unit in COLUMNS)
        table.add_row(Text(point.target), point.load, *cells)
    yield table
    for line in facts(result):
        yield Text(line)


def cell(found: Estimate | None, scale: float = 1, unit: str = "") -> str:
    """``12.3 ±0.4 ms``: mean and half width of the 95% interval."""
    if found is None:
        return "-"
    half = found.half_width
    spread = "" if not half else f" ±{number(half * scale)}"
    return f"{number(found.mean * scale)}{spread}{unit and ' ' + unit}"


def number(value: float) -> str:
    """Three digits that tell something."""
    if value == 0 or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def facts(result: Result) -> Sequence[str]:
    """Sentences below the table: who was measured with what, and every note."""
    lines: list[str] = []
    for point in result.points:
        server, work = point.server, point.workload
        lines.append(
            f"{point.target}: {server.model} on {server.engine} {server.engine_version}, {server.gpus} GPU(s) counted, "
            f"KV {server.kv_dtype or 'as the model'}, {_count(server.kv_tokens)} KV tokens."
        )
        lines.append(
            f"{work.name}: {work.requests} requests of {work.sessions} sessions, the longest {work.longest_tokens:,} "
            f"tokens (workload {work.digest}). {' '.join(work.rules)}"
        )
    lines += [line for point in result.points for line in notes(point)]
    if result.state != "complete":
        lines.append(f"PARTIAL: {result.why or 'it was broken off, or still runs.'}")
    elif result.problem:
        lines.append(f"FAILED: {result.problem}")
    return list(dict.fromkeys(printable(line) for line in lines))


def printable(text: str) -> str:
    """``text`` of others as one line that moves no cursor."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def groups_view(point: Point) -> Iterator[RenderableType]:
    """Figures by domain and by length of the answer, of the first whole repeat."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("part", "requests", "TTFT p50 ms", "ITL p50 ms", "tokens/s/user"):
        table.add_column(name, justify="right" if name != "part" else "left")
    for repeat in point.measured[:1]:
        for name, figures in (
            *repeat.by_domain.items(),
            *((f"{key} tokens out", v) for key, v in repeat.by_output.items()),
        ):
            cells = (("ttft_s_p50", 1000), ("itl_s_p50", 1000), ("user_tokens_s_p50", 1))
            shown = (number(figures[key] * scale) if key in figures else "-" for key, scale in cells)
            table.add_row(name, f"{figures['requests']:.0f}", *shown)
    yield table


MS = {"ttft_s": "TTFT", "itl_s": "ITL", "latency_s": "latency"}
"""Quantiles of times, in milliseconds."""
WORDS = {
    "user_tokens_s_p50": ("tokens/s/user", 1),
    "total_tokens_min_gpu": ("tokens/min/GPU", 1),
    "output_tokens_min_gpu": ("out/min/GPU", 1),
    "hit_rate_usage": ("hits %", 100),
    "hit_rate_engine": ("hits by counters %", 100),
    "acceptance_length": ("accepted", 1),
    "queue_s_mean": ("queue ms", 1000),
}


def _words(figure: str) -> tuple[str, float]:
    """What ``figure`` is called as in a result's table, and what it is multiplied by."""
    name, _, quantile = figure.rpartition("_")
    return (f"{MS[name]} {quantile} ms", 1000) if name in MS else WORDS.get(figure, (figure, 1))


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def changes_view(changes: Sequence[Change]) -> Iterator[RenderableType]:
    """A line for each figure, and what changed in a sentence."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("target", "load", "figure", "before", "after", "change", "verdict"):
        table.add_column(name, justify="left" if name in ("target", "load", "figure", "verdict") else "right")
    styles = {"better": "green", "worse": "red"}
    for one in changes:
        name, scale = _words(one.figure)
        half = "" if one.half_width is None else f" ±{number(one.half_width * scale)}"
        moved = f"{(one.after - one.before) * scale:+.3g}{half}"
        before, after = number(one.before * scale), number(one.after * scale)
        verdict = Text(one.verdict, style=styles.get(one.verdict, ""))
        table.add_row(Text(one.target), one.load, name, before, after, moved, verdict)
    yield table
    beyond = [f"{_words(one.figure)[0]} {one.verdict} ({one.load})" for one in changes if one.verdict in styles]
    if any(one.verdict == "unknown" for one in changes):
        yield Text("With one repeat on a side nothing can be told from noise: give --repeats 3 or more.")
    if any(one.verdict == "too few" for one in changes):
        needed = " and ".join(f"{values_needed(share)} for {name}" for name, share in TAILS.items())
        yield Text(
            f"Too few values in a repeat for its tail ({needed}): p95 and p99 are then nearly the largest value."
        )
    yield Text("Beyond the noise: " + (", ".join(beyond) or "nothing") + ".")
