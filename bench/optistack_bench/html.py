"""The result as one HTML page that stands alone: no script, no network."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from optistack_bench.pareto import conclusions
from optistack_bench.picture import draw_svg
from optistack_bench.result import Point, Result
from optistack_bench.terminal import COLUMNS, cell, facts, number

STYLE = """
:root { color-scheme: light dark; --line: #8885; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.partial { color: #c62828; font-weight: bold; }
.wide { overflow-x: auto; }
svg { width: 100%; max-width: 54rem; height: auto; background: #fff; border-radius: .4rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
th, td { text-align: right; padding: .25rem .5rem; border-top: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: normal; opacity: .7; }
li { overflow-wrap: anywhere; }
"""


def html_page(result: Result, floor: float | None = None) -> str:
    """The whole page as text; ``floor`` in tokens/s/user is that of ``--min-tps-user``."""
    partial = f'<p class="partial">{escape(result.problem)}</p>' if result.problem else ""
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Benchmark</title><style>{STYLE}</style></head><body><h1>Benchmark</h1>{partial}",
            f"<p>{escape(result.made_at)}, optistack {escape(result.optistack_version)}, {escape(result.machine)}</p>",
            draw_svg(result),
            "<ul>",
            *(f"<li>{escape(line)}</li>" for line in conclusions(result, floor)),
            "</ul><h2>Figures</h2>",
            *_figures(result),
            "<h2>By domain and length of the answer</h2>",
            *_groups(result),
            "<h2>Sessions: hits beside what is possible</h2>",
            *_sessions(result),
            "<h2>What has to be said</h2><ul>",
            *(f"<li>{escape(line)}</li>" for line in facts(result)),
            "</ul></body></html>\n",
        )
    )


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield '<div class="wide"><table><tr>'
    yield from (f"<th>{escape(name)}</th>" for name in head)
    yield "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(one)}</td>" for one in row) + "</tr>"
    yield "</table></div>"


def _figures(result: Result) -> Iterator[str]:
    rows = [
        [point.target, point.load, *(cell(point.estimate(key), scale, unit) for _, key, scale, unit in COLUMNS)]
        for point in result.points
    ]
    return _table(["target", "load", *(name for name, *_ in COLUMNS)], rows)


def _groups(result: Result) -> Iterator[str]:
    rows = []
    for point in result.points:
        for repeat in point.measured[:1]:
            parts = {**repeat.by_domain, **{f"{name} tokens out": found for name, found in repeat.by_output.items()}}
            for name, figures in parts.items():
                shown = (("ttft_s_p50", 1000), ("itl_s_p50", 1000), ("user_tokens_s_p50", 1))
                cells = [number(figures[key] * scale) if key in figures else "-" for key, scale in shown]
                rows.append([point.target, point.load, name, f"{figures['requests']:.0f}", *cells])
    return _table(["target", "load", "part", "requests", "TTFT p50 ms", "ITL p50 ms", "tokens/s/user"], rows)


def _sessions(result: Result) -> Iterator[str]:
    rows = [row for point in result.points[-1:] for row in _session_rows(point)]
    return _table(["session", "requests", "prompt tokens", "possible", "hit"], rows)


def _session_rows(point: Point) -> Iterator[list[str]]:
    for repeat in point.measured[:1]:
        for one in repeat.sessions:
            hit = "-" if one.cached_tokens is None else f"{one.cached_tokens / one.prompt_tokens:.1%}"
            possible = f"{one.reusable_tokens / one.prompt_tokens:.1%}"
            yield [one.name, str(one.requests), f"{one.prompt_tokens:,}", possible, hit]
