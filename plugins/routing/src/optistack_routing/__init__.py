"""How requests are spread over replicas: the policy as settings, and proof of the prefix cache that it lives on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from optistack import hookimpl
from optistack.plugin import Domain, PluginInfo
from optistack.rules import Rule
from optistack.settings import Routing
from optistack_routing.options import Options

if TYPE_CHECKING:
    from optistack.cases import ConformanceCase
    from optistack.context import PlanContext
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Endpoint
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
def optistack_rules() -> Sequence[Rule]:
    from optistack_routing.rules import RULES

    return RULES


@hookimpl
def optistack_probe(plan: Plan, endpoint: Endpoint) -> Sequence[CheckResult]:
    from optistack_routing.probe import prefix_is_cached, promises

    return [*promises(plan), prefix_is_cached(plan, endpoint)]


@hookimpl
def optistack_conformance() -> Sequence[ConformanceCase]:
    from optistack_routing.conformance import CASES

    return CASES
