"""Words and numbers that the renderings share."""

from __future__ import annotations

from collections.abc import Iterator

from optistack_conformance.outcomes import Figure, Outcome
from optistack_conformance.report import Report, State, Subject
from optistack_conformance.selection import TIERS

TIER_TITLES = {0: "Tier 0, contract", 1: "Tier 1, lossless", 2: "Tier 2, lossy"}


def number(value: float) -> str:
    """Four digits are enough: ``0.00031``, ``1,288``, ``98.75``."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:,.2f}"


def bound(figure: Figure) -> str:
    """What a figure is held against, and the noise: ``<= 0.0003, A/A noise 0.0001``."""
    parts = []
    if figure.threshold is not None:
        sign = {"<=": "≤", ">=": "≥"}.get(figure.relation, figure.relation)
        parts.append(f"{sign} {number(figure.threshold)}")
    if figure.floor is not None:
        parts.append(f"A/A noise {number(figure.floor)}")
    if figure.n is not None:
        parts.append(f"n = {figure.n:,}")
    return ", ".join(parts)


def measured(figure: Figure) -> str:
    return f"{number(figure.value)} {figure.unit}".strip()


def who(subject: Subject) -> str:
    """``smollm2 on vllm 0.32.0 at http://..., KV fp8``."""
    kv = f", KV {subject.kv_dtype}" if subject.kv_dtype else ""
    return f"{subject.model} on {subject.engine} {subject.engine_version} at {subject.where}{kv}"


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """What the run was, name and value."""
    if report.state is not State.COMPLETE:
        yield report.state.value.capitalize(), report.ended
    yield "Candidate", who(report.candidate)
    yield "Baseline", who(report.baseline) if report.baseline else "none"
    yield "Profile", f"{report.settings['profile']}, {report.duration_s:.0f} s"
    if report.settings.get("lossy"):
        yield "Claim", f"lossy: {report.settings['lossy']}"
    yield "Seed", str(report.settings["seed"])
    yield "Evals", f"version {report.evals_version}"
    yield "Plan", report.plan_hash or "no plan"
    yield "Checkpoint", report.checkpoint_fingerprint or "not given"
    yield "Chat template", report.chat_template_hash or "not given"
    yield "Made", f"{report.made_at} by optistack {report.optistack_version}"


def tally(report: Report, tier: int) -> str:
    """``41 pass, 2 skipped``."""
    outcomes = [result.outcome for result in report.of_tier(tier)]
    return ", ".join(f"{outcomes.count(kind)} {kind.value}" for kind in Outcome if kind in outcomes)


def tiers_of(report: Report) -> list[int]:
    return [tier for tier in TIERS if report.of_tier(tier)]
