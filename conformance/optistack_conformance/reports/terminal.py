"""The report in a terminal: failures and doubts whole, passes by what they were judged by."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import columns, heading, indented
from optistack_conformance.outcomes import CaseResult, Outcome
from optistack_conformance.report import Report, State
from optistack_conformance.reports.text import TIER_TITLES, bound, facts, measured, tally, tiers_of

STYLES = {
    Outcome.FAIL: "bold red",
    Outcome.INCONCLUSIVE: "bold yellow",
    Outcome.PASS: "green",
    Outcome.SKIPPED: "dim",
}


def report_view(report: Report, *, wide: bool) -> Iterator[RenderableType]:
    """Cases that were skipped, and those that passed with nothing to say, are counted and not listed."""
    yield heading("Conformance")
    table = columns(None, None if wide else 90)
    for name, value in facts(report):
        table.add_row(Text(name, style="dim"), value)
    yield indented(table)
    for tier in tiers_of(report):
        verdict = report.verdict_of(tier)
        yield Text.assemble(
            (TIER_TITLES[tier], "bold"), "  ", (verdict.value, STYLES[verdict]), (f"  {tally(report, tier)}", "dim")
        )
        cases = columns(None, None if wide else 44, None if wide else 90)
        shown = [result for result in report.of_tier(tier) if _matters(result)]
        for result in shown:
            cases.add_row(Text(result.outcome.value, style=STYLES[result.outcome]), result.id, _details(result, wide))
        if shown:
            yield indented(cases)
    verdict = report.verdict
    state = "" if report.state is State.COMPLETE else f" ({report.state.value}: {report.ended})"
    yield Text.assemble("Verdict: ", (verdict.value, STYLES[verdict]), state)


def _matters(result: CaseResult) -> bool:
    says = bool(result.figures or result.why)
    return result.outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE) or (result.outcome is Outcome.PASS and says)


def _details(result: CaseResult, wide: bool) -> Text:
    lines = [result.why.replace("\n", " ")] if result.why else []
    lines += [f"known rule {result.known}"] if result.known else []
    judged = [figure for figure in result.figures if figure.threshold is not None or result.outcome is not Outcome.PASS]
    lines += [
        f"{figure.name}: {measured(figure)} ({bound(figure)})"
        if bound(figure)
        else f"{figure.name}: {measured(figure)}"
        for figure in judged
    ]
    return Text(("; " if wide else "\n").join(lines))
