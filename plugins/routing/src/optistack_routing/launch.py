"""The router's launch: the settings of a plan as its options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from optistack.errors import PlanRefusedError
from optistack.launch import PORT, REPLICA_URL, FrontLaunch, LaunchArgument, LaunchFile
from optistack.settings import Value
from optistack_routing import prefix
from optistack_routing.settings import EVENTS, REPLAY

if TYPE_CHECKING:
    from optistack.plan.plan import Plan

ME = "routing"
NAME = "router"
ADMIN = "admin"
"""The port of the router's admin side."""

FILE = "route.yaml"
HEALTH_EVERY_S = 1.0
"""On one machine a look at a replica costs nothing, and a replica that has come up is used at once."""

_AS_PARAMETERS = ("max_homes", "overload_margin", "session_idle_s")


def render(plan: Plan) -> FrontLaunch:
    """The launch of the router before the plan's replicas. Raises PlanRefusedError where precise mode cannot work."""
    routing = plan.stack.routing
    arguments = [
        _argument("--host", plan.spec.serving.host, source="stack", why="serving.host"),
        _argument("--port", PORT, why="serving.port, or picked when it is started"),
        _argument("--admin-port", f"{{port.{ADMIN}}}", why="picked; state and metrics, on loopback"),
        _argument("--replica", REPLICA_URL, why=f"one for each of the {len(plan.launches)} replicas"),
        _carried("--policy", "policy", routing.policy),
    ]
    if routing.session_header.is_set:
        arguments += _headers(routing.session_header)
    arguments.append(_argument("--config", f"{{folder}}/{FILE}", why="the policy's numbers"))
    return FrontLaunch(
        name=NAME,
        command=("-P", "-m", "optistack.cli", "route"),
        arguments=tuple(arguments),
        files=(LaunchFile(name=FILE, content="".join(_file(plan)), source=ME, why="the policy's numbers"),),
        host=plan.spec.serving.host,
        ready_path="/health",
        ports=(ADMIN,),
    )


def parameters(plan: Plan) -> dict[str, Any]:
    """The policy's parameters that the plan sets, and the KV pool that its budget gives each replica."""
    routing = plan.stack.routing
    found = {name: getattr(routing, name).value for name in _AS_PARAMETERS if getattr(routing, name).is_set}
    if routing.policy.value == "kv-aware" and plan.budget.kv_tokens > 0:
        found["kv_tokens"] = plan.budget.kv_tokens
    return {**found, **(routing.parameters.value or {})}


def _file(plan: Plan) -> Iterator[str]:
    yield "# Made by optistack from a plan: `optistack plan` says who set what, and why.\n"
    yield f"health_every_s: {HEALTH_EVERY_S}\n"
    asked = parameters(plan)
    if asked:
        yield "parameters:\n"
    for name, value in asked.items():
        yield f"  {name}: {'.inf' if value == float('inf') else json.dumps(value)}\n"
    if plan.stack.routing.precise.value:
        yield from _precise(plan)


def _precise(plan: Plan) -> Iterator[str]:
    page, folder = plan.stack.kv.page_size_tokens, plan.model.path
    if not page.is_set:
        raise PlanRefusedError(
            "Precise routing needs to know how large a KV page is, and nobody in this plan says so.",
            fix="Leave option precise of the routing plugin out.",
        )
    yield "precise:\n"
    yield f"  checkpoint: {json.dumps(str(folder or plan.spec.model.checkpoint))}\n"
    yield f"  page_tokens: {page.value}\n"
    yield f"  dropped_pages: {prefix.pages_left_out(plan) - 1}\n"
    yield "  events:\n"
    yield f"    {json.dumps(REPLICA_URL)}: [{json.dumps(EVENTS)}, {json.dumps(REPLAY)}]\n"


def _argument(flag: str, value: str, *, source: str = ME, why: str) -> LaunchArgument:
    return LaunchArgument(flag=flag, value=value, source=source, why=why)


def _carried(flag: str, name: str, value: Value[Any], word: str | None = None) -> LaunchArgument:
    """An argument for a setting, signed by whoever wished for it."""
    wishes = value.wishes
    return LaunchArgument(
        flag=flag,
        value=str(value.value) if word is None else word,
        source="; ".join(dict.fromkeys(wish.source for wish in wishes)),
        why="; ".join(dict.fromkeys(wish.why for wish in wishes if wish.why)),
        setting=f"routing.{name}",
    )


def _headers(first: Value[str]) -> list[LaunchArgument]:
    from optistack_routing.proxy.session import SESSION_HEADERS

    others = [header for header in SESSION_HEADERS if header != first.value]
    return [
        _carried("--session-header", "session_header", first),
        *(_argument("--session-header", header, why="what coding agents send by themselves") for header in others),
    ]
