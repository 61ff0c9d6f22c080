"""DFlash speculative decoding: a small draft model proposes a block of tokens in one pass, the target verifies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optistack.markers import hookimpl
from optistack.plugin import Domain, PluginInfo
from optistack_dflash.options import DFlashOptions

if TYPE_CHECKING:
    import typer

    from optistack.cases import ConformanceCase
    from optistack.context import PlanContext
    from optistack.plan.plan import Plan
    from optistack.rules import Rule
    from optistack.settings import Speculation
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.receipt import CheckResult


@hookimpl
def optistack_plugin() -> PluginInfo:
    return PluginInfo(
        name="dflash",
        domain=Domain.SPECULATION,
        version="0.1.0",
        summary="DFlash speculative decoding: a draft model proposes a block of tokens in one pass.",
        options=DFlashOptions,
    )


@hookimpl
def optistack_speculate(ctx: PlanContext) -> Speculation:
    from optistack_dflash.settings import decide

    return decide(ctx)


@hookimpl
def optistack_rules() -> Sequence[Rule]:
    from optistack_dflash.rules import RULES

    return RULES


@hookimpl
def optistack_probe(plan: Plan, endpoint: Endpoint) -> Sequence[CheckResult]:
    from optistack_dflash.probe import probe

    return probe(plan, endpoint)


@hookimpl
def optistack_conformance() -> Sequence[ConformanceCase]:
    from optistack_dflash.conformance import CASES

    return CASES


@hookimpl
def optistack_commands() -> Mapping[str, typer.Typer]:
    from optistack_dflash.commands import app

    return {"dflash": app}
