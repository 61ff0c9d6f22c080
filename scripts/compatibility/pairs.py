"""What becomes of each pair of plugins: planned with both, with either alone and with none, and compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from scripts.compatibility.shapes import PLACES, Place, models, sections

from optistack.backend import get_backend
from optistack.engines.recipes import RECIPES
from optistack.errors import PlanRefusedError
from optistack.host import Host
from optistack.plan.build import build_plan
from optistack.plan.plan import Plan
from optistack.rules import Severity
from optistack.stack.spec import EngineSection, StackSpec

PLUGINS = ("quant-nvfp4", "kv-fp8", "dflash", "hicache", "routing")
PAIRS = tuple(combinations(PLUGINS, 2))
BACKENDS = ("sglang", "vllm")
WORSE = (Severity.OVERRIDE, Severity.SILENT, Severity.DEGRADED)


@dataclass(frozen=True)
class Reason:
    """A rule that fires with both plugins. ``alone``: those of the two with which alone it fires as well."""

    rule: str
    severity: Severity
    alone: tuple[str, ...]

    @property
    def only_together(self) -> bool:
        return not self.alone


@dataclass(frozen=True)
class Outcome:
    """One pair on one engine at one place. ``checked`` names the two plugins' settings that the receipt compares."""

    backend: str
    version: str
    place: Place
    pair: tuple[str, str]
    reasons: tuple[Reason, ...]
    settings: tuple[tuple[str, str], ...]

    @property
    def verdict(self) -> str:
        severities = {reason.severity for reason in self.reasons}
        if Severity.ERROR in severities:
            return "refused"
        return "degraded" if severities.intersection(WORSE) else "supported"


def version_at(backend: str, place: Place) -> str:
    """The version that the page speaks of: the adapter's default on a GPU, the one that can be installed on a CPU."""
    if place.node != "cpu":
        return get_backend(backend).default_version
    return next(recipe.version for recipe in RECIPES if recipe.name == f"{backend}-cpu")


def outcomes(versions: dict[str, str] | None = None) -> list[Outcome]:
    """Every pair on every engine and place; on GPUs of ``versions`` instead, by backend, where it is given."""
    host = Host.from_environment()
    with models() as folder:
        return [
            outcome
            for backend in BACKENDS
            for place in PLACES
            if versions is None or (backend in versions and place.node != "cpu")
            for outcome in _at(backend, (versions or {}).get(backend, version_at(backend, place)), place, folder, host)
        ]


def _at(backend: str, version: str, place: Place, folder: Path, host: Host) -> Iterator[Outcome]:
    def findings(*plugins: str) -> tuple[dict[str, Severity], Plan | None]:
        """The rules that fire, or the one that refuses to have anything rendered."""
        nvfp4 = "quant-nvfp4" in plugins
        draft = {"draft": "example/draft", "draft_config": str(folder / place.draft)}
        spec = StackSpec(
            backend=backend,
            engine=EngineSection(version=version),
            plugins={plugin: draft if plugin == "dflash" else {} for plugin in plugins},
            **sections(place, folder, nvfp4=nvfp4),
        )
        try:
            plan = build_plan(spec, host, get_backend(backend))
        except PlanRefusedError as error:
            if error.rule is None:
                raise
            return {error.rule: Severity.ERROR}, None
        if plan.flag_check.problems or not plan.flag_check.against or not plan.budget.feasible:
            raise AssertionError(f"{backend} {place.name} {plugins}: {plan.flag_check} {plan.budget.reason}")
        return {finding.rule: finding.severity for finding in plan.findings}, plan

    base, _ = findings()
    alone = {plugin: findings(plugin)[0] for plugin in PLUGINS}
    for pair in PAIRS:
        together, plan = findings(*pair)
        reasons = [
            Reason(rule, severity, tuple(plugin for plugin in pair if rule in alone[plugin]))
            for rule, severity in together.items()
            if rule not in base
        ]
        # A plugin's own notes say nothing about the other one.
        told = [reason for reason in reasons if reason.severity is not Severity.NOTE or reason.only_together]
        yield Outcome(backend, version, place, pair, tuple(told), tuple(_settings(plan, pair)) if plan else ())


def _settings(plan: Plan, plugins: Iterable[str]) -> Iterator[tuple[str, str]]:
    for path, value in plan.stack.values():
        for plugin in plugins:
            if value.is_set and any(origin.source == plugin for origin in value.wishes):
                yield plugin, path
