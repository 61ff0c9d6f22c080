"""What differs between two plans, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from optistack.launch import FrontLaunch, Launch
from optistack.memory.budget import MemoryBudget
from optistack.plan.plan import Plan
from optistack.secrets import shown
from optistack.verify.verify import promised_by


class Part(StrEnum):
    """The parts of a plan that are compared, in the order in which they are told."""

    ENGINE = "engine"
    PLUGIN = "plugin"
    SETTING = "setting"
    MEMORY = "memory"
    FLAG = "flag"
    VARIABLE = "variable"
    FILE = "file"
    FRONT = "front"
    RULE = "rule"


class Difference(BaseModel):
    """``name`` is ``before`` in one plan and ``after`` in the other; ``None`` where a plan does not have it.

    ``who_before``, ``who_after``  who decided it, where somebody did
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    part: Part
    name: str
    before: str | None
    after: str | None
    who_before: str = ""
    who_after: str = ""


Said = tuple[str, str]
"""What is said, and by whom."""


def diff_plans(before: Plan, after: Plan) -> tuple[Difference, ...]:
    """Every difference between two plans, in the order of :class:`Part`; replicas beyond the first are not compared."""
    found: list[Difference] = []
    for part in Part:
        old, new = _said(before, part), _said(after, part)
        for name in dict.fromkeys((*old, *new)):
            was, now = old.get(name), new.get(name)
            if (was and was[0]) != (now and now[0]):
                found.append(
                    Difference(
                        part=part,
                        name=name,
                        before=shown(name, was[0]) if was else None,
                        after=shown(name, now[0]) if now else None,
                        who_before=was[1] if was else "",
                        who_after=now[1] if now else "",
                    )
                )
    return tuple(found)


def _said(plan: Plan, part: Part) -> Mapping[str, Said]:
    launch = plan.launches[0]
    match part:
        case Part.ENGINE:
            return dict(_engine(plan))
        case Part.PLUGIN:
            return {use.name: (_options(use.options), "") for use in plan.plugins}
        case Part.SETTING:
            return {path: (value.describe(), promised_by(value)) for path, value in plan.stack.values()}
        case Part.MEMORY:
            return {name: (f"{number:,}", "") for name, number in memory_figures(plan.budget).items()}
        case Part.FLAG:
            return _flags(launch)
        case Part.FRONT:
            return _flags(plan.front) if plan.front is not None else {}
        case Part.VARIABLE:
            return {variable.name: (variable.value, variable.source) for variable in launch.variables}
        case Part.FILE:
            return {file.name: (file.content, file.source) for file in launch.files}
        case Part.RULE:
            return {
                finding.rule: (f"{finding.severity}: {finding.message}", finding.source) for finding in plan.findings
            }


def _flags(launch: Launch | FrontLaunch) -> dict[str, Said]:
    flags: dict[str, Said] = {}
    for argument in launch.arguments:
        value, who = flags.get(argument.flag, ("", ""))
        flags[argument.flag] = (f"{value} {argument.value or ''}".strip(), who or argument.source)
    return flags


def _engine(plan: Plan) -> Iterator[tuple[str, Said]]:
    yield "engine", (f"{plan.engine.backend} {plan.engine.version}", "")
    yield "node", (plan.node.name, "")
    yield "checkpoint", (f"{plan.model.source} ({plan.model.fingerprint[:12]})", "")
    parallel = plan.spec.parallel
    yield "tensor parallel", (str(parallel.tensor), "")
    yield "expert parallel", (str(parallel.expert), "")
    yield "attention data parallel", (str(parallel.attention_data), "")
    yield "replicas", (str(parallel.replicas), "")


def _options(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items() if value is not None) or "no options"


def memory_figures(budget: MemoryBudget) -> dict[str, int]:
    """The budget as figures in bytes of one GPU, tokens and sessions."""
    figures = {f"{line.label} bytes": 0 for line in budget.lines}
    for line in budget.lines:
        figures[f"{line.label} bytes"] += line.bytes
    figures |= {
        "KV bytes": budget.kv_bytes,
        "bytes per KV token": budget.bytes_per_kv_token,
        "KV tokens": budget.kv_tokens,
        "shortfall bytes": budget.shortfall_bytes,
        "free host bytes": budget.host_free_bytes,
    }
    return figures if budget.sessions is None else figures | {"sessions": budget.sessions}
