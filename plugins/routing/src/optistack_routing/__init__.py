"""How requests are spread over replicas: the policy as settings, the router, and proof of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optistack import hookimpl
from optistack.plugin import Domain, PluginInfo
from optistack.rules import Rule
from optistack.settings import Routing
from optistack_routing.options import Options

if TYPE_CHECKING:
    import typer

    from optistack.cases import ConformanceCase
    from optistack.context import PlanContext
    from optistack.launch import FrontLaunch
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.front import RunningFront
    from optistack.verify.receipt import CheckResult

__version__ = "0.1.0"


@hookimpl
def optistack_plugin() -> PluginInfo:
    return PluginInfo(
        name="routing",
        domain=Domain.ROUTING,
        version=__version__,
        summary="session-affine, load-aware routing over replicas",
        options=Options,
    )


@hookimpl
def optistack_route(ctx: PlanContext) -> Routing:
    from optistack_routing.settings import decide

    return decide(ctx)


@hookimpl
def optistack_front(plan: Plan) -> FrontLaunch | None:
    from optistack_routing.launch import render

    return render(plan)


@hookimpl
def optistack_rules() -> Sequence[Rule]:
    from optistack_routing.rules import RULES

    return RULES


@hookimpl
def optistack_probe(plan: Plan, endpoint: Endpoint) -> Sequence[CheckResult]:
    from optistack_routing.probe import prefix_is_cached, promises

    # With a router they are proven there, once.
    return [*(() if plan.front else promises(plan)), prefix_is_cached(plan, endpoint)]


@hookimpl
def optistack_probe_front(plan: Plan, front: RunningFront) -> Sequence[CheckResult]:
    from optistack_routing.probe_router import probe_router

    return probe_router(plan, front)


@hookimpl
def optistack_commands() -> Mapping[str, typer.Typer]:
    from optistack_routing.commands import app

    return {"route": app}


@hookimpl
def optistack_conformance() -> Sequence[ConformanceCase]:
    from optistack_routing.conformance import CASES

    return CASES
