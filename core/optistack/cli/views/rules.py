"""Rules that fired, plugins that were left out, and why a plan is refused."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import SEVERITY_STYLES, Entries, heading, indented, reason
from optistack.plan.plan import Plan
from optistack.rules import Finding, Severity


def rules_view(plan: Plan, *, wide: bool) -> Iterator[RenderableType]:
    if plan.dropped:
        yield heading("Left out", "because of --allow-degraded")
        entries = Entries(wide=wide)
        for dropped in plan.dropped:
            entries.add([Text(dropped.plugin, "bold"), dropped.rule], [Text(dropped.message)])
        yield from entries.render()
    if plan.findings:
        yield heading("Rules that fired", "`optistack explain RULE` tells more")
        entries = Entries(wide=wide)
        for finding in plan.findings:
            cells = [Text(finding.severity.value, SEVERITY_STYLES[finding.severity]), Text(finding.rule, "bold")]
            fix = f" Fix: {finding.fix}" if finding.fix else ""
            known = reason(f"{finding.evidence.value}, by {finding.source}", finding.upstream)
            entries.add(cells, [Text.assemble(finding.message, (fix, "cyan")), known])
        yield from entries.render()


def degraded(plan: Plan) -> list[Finding]:
    """The rules that fired and say that something works, but worse than one would think."""
    return [finding for finding in plan.findings if finding.severity is Severity.DEGRADED]


def degraded_view(plan: Plan) -> Iterator[RenderableType]:
    """A line for each degraded rule that fired, beside a receipt: no check fails for what they say."""
    findings = degraded(plan)
    if findings:
        yield heading("Works, but degraded", "`optistack explain RULE` tells more")
        for finding in findings:
            style = SEVERITY_STYLES[finding.severity]
            yield indented(Text.assemble((finding.rule, style), f"  {finding.message}"))


def degradable(fix: str, droppable: bool) -> str:
    """``fix``, and what ``--allow-degraded`` would do about the refusal where it would do something."""
    if not droppable or "--allow-degraded" in fix:
        return fix
    return f"{fix} Or leave the plugin out with --allow-degraded.".strip()


def _room(plan: Plan) -> str:
    """What makes a budget work out that does not."""
    budget, pool = plan.budget, plan.spec.serving.kv_memory_gib
    too_few = budget.kv_tokens < budget.session_tokens
    if budget.device != "cpu" and not budget.shortfall_bytes:
        return "Use a node with more RAM, or make the host tier smaller."
    if pool is not None:
        return f"{'Raise' if too_few else 'Lower'} serving.kv_memory_gib, which is {pool:g}."
    node = "a node with more RAM" if budget.device == "cpu" else "more or larger GPUs"
    shorter = " or shorter requests (workload)" if too_few and budget.kv_tokens else ""
    return f"Use {node}, a smaller KV dtype,{shorter or ' or fewer plugins that take memory'}."


def refusal(plan: Plan) -> tuple[str, str]:
    """Why a refused plan is refused, and the fix: the first reason of the kind that explains the others."""
    if plan.errors:
        first = plan.errors[0]
        return f"{first.message} (rule {first.rule})", degradable(first.fix, first.domain is not None)
    if not plan.budget.feasible:
        return f"The stack does not fit: {plan.budget.reason}", _room(plan)
    problems = plan.flag_check.problems
    if not problems and plan.preflight is not None:
        by = f" (rule {', '.join(plan.preflight.explained_by)})" if plan.preflight.explained_by else ""
        return f"The engine rejects this launch: {plan.preflight.message.rstrip('.')}.{by}", "Change what it names."
    return f"The engine does not take this launch: {problems[0]}", "Use a version that does, or change it."
