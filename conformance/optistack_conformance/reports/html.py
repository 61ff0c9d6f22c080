"""The report as one HTML page that stands alone: no script, no network, readable on a phone and on paper."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from optistack_conformance.outcomes import CaseResult, Figure, Outcome
from optistack_conformance.report import Report, State
from optistack_conformance.reports.text import TIER_TITLES, bound, facts, measured, tally, tiers_of

STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8881; --fail: #c62828; --inconclusive: #b26a00;
  --pass: #2e7d32; --skipped: #757575; }
@media (prefers-color-scheme: dark) { :root { --fail: #ef6b6b; --inconclusive: #f0b14a; --pass: #6fce74;
  --skipped: #a0a0a0; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
h1 span, h2 span { text-transform: uppercase; font-size: .8em; }
.fail { color: var(--fail); } .inconclusive { color: var(--inconclusive); } .pass { color: var(--pass); }
.skipped { color: var(--skipped); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 1rem 0; }
dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; }
.tiers { display: flex; flex-wrap: wrap; gap: .5rem; padding: 0; list-style: none; }
.tiers li { border: 1px solid var(--line); border-radius: .4rem; padding: .4rem .8rem; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .4rem 0; padding: .4rem .7rem; }
summary { cursor: pointer; overflow-wrap: anywhere; } summary b { display: inline-block; min-width: 6.5rem; }
details p { margin: .4rem 0; overflow-wrap: anywhere; white-space: pre-wrap; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .5rem; border-top: 1px solid var(--line); overflow-wrap: anywhere; }
th { font-weight: normal; opacity: .7; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  td { padding: .2rem .25rem; } summary b { min-width: 0; margin-right: .4rem; } }
"""


def html_page(report: Report) -> str:
    """The whole page as text."""
    verdict = report.verdict
    state = "" if report.state is State.COMPLETE else f" ({report.state.value})"
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Conformance: {verdict.value}{state}</title><style>{STYLE}</style></head><body>",
            f'<h1>Conformance: <span class="{verdict.value}">{verdict.value}</span>{state}</h1>',
            '<ul class="tiers">',
            *(_tier_badge(report, tier) for tier in tiers_of(report)),
            "</ul><dl>",
            *(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts(report)),
            "</dl>",
            *(part for tier in tiers_of(report) for part in _tier(report, tier)),
            "</body></html>\n",
        )
    )


def _tier_badge(report: Report, tier: int) -> str:
    verdict = report.verdict_of(tier)
    return f'<li>{TIER_TITLES[tier]}: <b class="{verdict.value}">{verdict.value}</b></li>'


def _tier(report: Report, tier: int) -> Iterator[str]:
    yield f'<section><h2>{TIER_TITLES[tier]} <span class="{report.verdict_of(tier).value}">'
    yield f"{report.verdict_of(tier).value}</span></h2><p>{tally(report, tier)}</p>"
    order = list(Outcome)
    for result in sorted(report.of_tier(tier), key=lambda result: order.index(result.outcome)):
        yield from _case(result)
    yield "</section>"


def _case(result: CaseResult) -> Iterator[str]:
    shown = " open" if result.outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE) or result.figures else ""
    yield f'<details{shown}><summary><b class="{result.outcome.value}">{result.outcome.value}</b> '
    yield f"{escape(result.id)}</summary><p>{escape(result.summary)}</p>"
    if result.why:
        yield f"<p>{escape(result.why)}</p>"
    if result.known:
        yield f"<p>Known rule: {escape(result.known)}</p>"
    if result.figures:
        yield "<table><tr><th>figure</th><th>measured</th><th>held against</th></tr>"
        yield from map(_row, result.figures)
        yield "</table>"
    yield "</details>"


def _row(figure: Figure) -> str:
    cells = (figure.name, measured(figure), bound(figure))
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
