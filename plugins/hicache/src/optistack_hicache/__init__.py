"""KV cache tiers below the device: host RAM, and storage below that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optistack.markers import hookimpl
from optistack.plugin import Domain, PluginInfo
from optistack_hicache.options import HiCacheOptions

if TYPE_CHECKING:
    import typer

    from optistack.cases import ConformanceCase
    from optistack.context import PlanContext
    from optistack.plan.plan import Plan
    from optistack.rules import Rule
    from optistack.settings import CacheTier
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.receipt import CheckResult


@hookimpl
def optistack_plugin() -> PluginInfo:
    return PluginInfo(
        name="hicache",
        domain=Domain.CACHE,
        version="0.1.0",
        summary="KV cache tiers in host RAM and storage.",
        options=HiCacheOptions,
    )


@hookimpl
def optistack_tier_cache(ctx: PlanContext) -> Sequence[CacheTier]:
    from optistack_hicache.settings import decide

    return decide(ctx)


@hookimpl
def optistack_rules() -> Sequence[Rule]:
    from optistack_hicache.rules import RULES

    return RULES


@hookimpl
def optistack_before_start(plan: Plan) -> None:
    from optistack_hicache.start import before_start

    before_start(plan)


@hookimpl
def optistack_probe(plan: Plan, endpoint: Endpoint) -> Sequence[CheckResult]:
    from optistack_hicache.probe import probe

    return probe(plan, endpoint)


@hookimpl
def optistack_conformance() -> Sequence[ConformanceCase]:
    from optistack_hicache.conformance import CASES

    return CASES


@hookimpl
def optistack_commands() -> Mapping[str, typer.Typer]:
    from optistack_hicache.commands import app

    return {"hicache": app}
