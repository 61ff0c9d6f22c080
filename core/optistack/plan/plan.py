"""``Plan``: everything that will be done, as a value. It prints, diffs, and is saved as a lock file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from optistack.context import EngineFacts
from optistack.facts.model import ModelFacts
from optistack.facts.node import NodeFacts
from optistack.launch import FrontLaunch, Launch
from optistack.memory.budget import MemoryBudget
from optistack.preflight import Preflight, Verdict
from optistack.rules import Finding, Severity
from optistack.settings.resolved import ResolvedStack
from optistack.stack.spec import StackSpec
from optistack.verify.receipt import Dropped


class PluginUse(BaseModel):
    """A plugin of the plan, with its options as parsed, defaults filled in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: str
    options: dict[str, Any]


class FlagCheck(BaseModel):
    """Whether the launch's flags were checked.

    ``against`` is the installed engine or the snapshot that they were checked against, ``""`` for neither; then
    ``unchecked`` says why.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    against: str
    problems: tuple[str, ...] = ()
    unchecked: str = ""


class Plan(BaseModel):
    """A stack, resolved for one model, node and engine.

    ``node`` is the whole node; ``share`` is what one replica gets of it. ``launches`` has one entry a replica;
    ``front`` is the process before them, where there is one.
    ``checkpoints`` are those that plugins read, by their references: their config files.
    ``preflight`` is what the engine said about it, ``None`` when it was not asked. It is told about the plan and no
    part of it: hash and lock file are without it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    optistack_version: str
    spec: StackSpec
    plugins: tuple[PluginUse, ...]
    dropped: tuple[Dropped, ...] = ()
    model: ModelFacts
    node: NodeFacts
    share: NodeFacts
    engine: EngineFacts
    stack: ResolvedStack
    budget: MemoryBudget
    launches: tuple[Launch, ...]
    front: FrontLaunch | None = None
    findings: tuple[Finding, ...] = ()
    flag_check: FlagCheck
    checkpoints: dict[str, Path] = {}
    preflight: Preflight | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def refused(self) -> bool:
        rejected = self.preflight is not None and self.preflight.verdict is Verdict.REJECTED
        return bool(self.errors) or bool(self.flag_check.problems) or not self.budget.feasible or rejected

    def options_of(self, plugin: str) -> dict[str, Any]:
        """The options of ``plugin`` in this plan; empty when it is not in it."""
        return next((use.options for use in self.plugins if use.name == plugin), {})

    def hash(self) -> str:
        """sha256 of the plan's canonical JSON: equal plans have equal hashes."""
        canonical = json.dumps(self.lasting(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def lasting(self) -> dict[str, Any]:
        """The plan as JSON values, without what was said about it on one machine."""
        return self.model_dump(mode="json", exclude={"preflight"})
