"""Rules that fired, plugins that were left out, and why a plan is refused."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import SEVERITY_STYLES, columns, heading, indented, joined
from optistack.plan.plan import Plan
from optistack.rules import Finding


def rules_view(plan: Plan, *, wide: bool) -> Iterator[RenderableType]:
    if plan.dropped:
        yield heading("Left out", "because of --allow-degraded")
        table = columns(None, None, None if wide else 100)
        for dropped in plan.dropped:
            table.add_row(dropped.plugin, dropped.rule, dropped.message)
        yield indented(table)
    if plan.findings:
        yield heading("Rules that fired", "`optistack explain RULE` tells more")
        table = columns(None, None if wide else 36, None if wide else 100)
        for finding in plan.findings:
            severity = Text(finding.severity.value, style=SEVERITY_STYLES[finding.severity])
            table.add_row(severity, finding.rule, _told(finding, wide=wide))
        yield indented(table)


def _told(finding: Finding, *, wide: bool) -> Text:
    how = joined([finding.evidence.value, finding.upstream])
    gap = "  " if wide else "\n"
    fix = f"{gap}Fix: {finding.fix}" if finding.fix else ""
    return Text.assemble(finding.message, (fix, "cyan"), (f"{gap}{how}", "dim"))


def refusal(plan: Plan) -> tuple[str, str]:
    """Why a refused plan is refused, and the fix: the first reason of the kind that explains the others."""
    if plan.errors:
        first = plan.errors[0]
        return f"{first.message} (rule {first.rule})", first.fix
    if not plan.budget.feasible:
        return f"The stack does not fit: {plan.budget.reason}", "Use more or larger GPUs, or a smaller KV dtype."
    problems = plan.flag_check.problems
    return f"The installed engine does not take this launch: {problems[0]}", "Use a version that does, or change it."
