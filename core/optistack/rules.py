"""Rules: what is known about combinations, as data with a small predicate.

A rule looks at the resolved settings and at the rendered launch. It never changes anything; what it found goes into the
plan, and an ``error`` refuses the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from optistack.errors import OptistackError, PlanRefusedError
from optistack.plugin import Domain
from optistack.versions import within

if TYPE_CHECKING:
    from optistack.context import EngineFacts
    from optistack.facts.model import ModelFacts
    from optistack.facts.node import NodeFacts
    from optistack.launch import Launch
    from optistack.memory.budget import MemoryBudget
    from optistack.settings.resolved import ResolvedStack
    from optistack.stack.spec import StackSpec


class Severity(StrEnum):
    """``error`` refuses the plan; ``override``: the engine would silently use another value; ``silent``: accepted and
    ignored; ``degraded``: works, but worse than one would think; ``note``: worth knowing."""

    ERROR = "error"
    OVERRIDE = "override"
    SILENT = "silent"
    DEGRADED = "degraded"
    NOTE = "note"


class Evidence(StrEnum):
    """How a rule is known: ``observed`` by running the engine (or its own argument resolution), ``read`` in its code or
    documentation, ``reported`` by users upstream."""

    OBSERVED = "observed"
    READ = "read"
    REPORTED = "reported"


@dataclass(frozen=True)
class RuleContext:
    """What a predicate may look at."""

    spec: StackSpec
    stack: ResolvedStack
    model: ModelFacts
    node: NodeFacts
    engine: EngineFacts
    budget: MemoryBudget
    launch: Launch


Predicate = Callable[[RuleContext], bool | str | None]
"""True when the rule fires. A string fires too and fills ``{detail}`` in the message."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    ``id``        stable, kebab-case, unique (``sglang-mla-nvfp4-kv``); ``optistack explain ID`` prints it
    ``versions``  PEP 440 specifier of the engine versions it holds for (empty: all)
    ``sm``        compute capabilities it holds for, as 10 x major + minor (empty: all, CPU included)
    ``message``   one sentence; may contain ``{detail}``
    ``fix``       what to do about it
    ``upstream``  link or file and line that says so
    ``domain``    whose plugins ``--allow-degraded`` may drop to get rid of the error (none: it may not)
    """

    id: str
    severity: Severity
    message: str
    fires: Predicate
    fix: str = ""
    upstream: str = ""
    evidence: Evidence = Evidence.READ
    backends: tuple[str, ...] = ()
    versions: str = ""
    sm: tuple[int, ...] = ()
    domain: Domain | None = None

    def applies(self, context: RuleContext) -> bool:
        """Whether backend, version and GPU are in the rule's range."""
        if self.backends and context.engine.backend not in self.backends:
            return False
        if self.sm and context.node.sm not in self.sm:
            return False
        return within(context.engine.version, self.versions)


class Finding(BaseModel):
    """A rule that fired."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    severity: Severity
    message: str
    fix: str
    upstream: str
    evidence: Evidence
    domain: Domain | None
    source: str


def evaluate(rules: Iterable[tuple[str, Rule]], context: RuleContext) -> tuple[Finding, ...]:
    """The findings of ``(source, rule)`` pairs, worst first. Raises PlanRefusedError for a rule that itself fails."""
    found = []
    for source, rule in rules:
        answer = _answer(source, rule, context)
        if not answer:
            continue
        detail = answer if isinstance(answer, str) else ""
        found.append(
            Finding(
                rule=rule.id,
                severity=rule.severity,
                message=rule.message.replace("{detail}", detail),
                fix=rule.fix,
                upstream=rule.upstream,
                evidence=rule.evidence,
                domain=rule.domain,
                source=source,
            )
        )
    ranks = list(Severity)
    return tuple(sorted(found, key=lambda finding: (ranks.index(finding.severity), finding.rule)))


def _answer(source: str, rule: Rule, context: RuleContext) -> bool | str | None:
    try:
        return rule.fires(context) if rule.applies(context) else None
    except OptistackError:
        raise
    except Exception as error:  # a rule may be a third party's
        raise PlanRefusedError(f"Rule {rule.id} of {source} failed: {type(error).__name__}: {error}") from error
