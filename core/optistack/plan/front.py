"""The process that a plugin puts before the replicas, and what that means for the replicas."""

from __future__ import annotations

from collections.abc import Sequence

from optistack.errors import PlanRefusedError
from optistack.host import Host, Plugin
from optistack.launch import FrontLaunch, Launch
from optistack.plan.plan import Plan
from optistack.stack.spec import StackSpec

LOOPBACK = "127.0.0.1"


def with_front(plan: Plan, host: Host, plugins: Sequence[Plugin]) -> Plan:
    """``plan`` with the one front that its plugins bring. Raises PlanRefusedError when that is none, or several."""
    answers = [(plugin, host.call(plugin, "optistack_front", FrontLaunch, plan=plan)) for plugin in plugins]
    fronts = [(plugin, front) for plugin, front in answers if front is not None]
    wished = ", ".join(dict.fromkeys(origin.source for origin in plan.stack.routing.front.wishes))
    if not fronts:
        raise PlanRefusedError(
            f"{wished} asks for a front before the replicas, and no plugin of the stack has one.",
            fix="Add a plugin that does, such as a router.",
        )
    if len(fronts) > 1:
        raise PlanRefusedError(
            f"Two plugins want to stand before the replicas: {fronts[0][0].name} and {fronts[1][0].name}.",
            fix="Leave one of them out.",
        )
    plugin, front = fronts[0]
    if front.name in {process_name(launch) for launch in plan.launches}:
        raise PlanRefusedError(f"Plugin {plugin.name} calls its front {front.name}, as a replica is called.")
    update = {"source": plugin.name, "version": plugin.info.version}
    return plan.model_copy(update={"front": front.model_copy(update=update)})


def process_name(launch: Launch) -> str:
    """What the process of a replica is called, and its folder."""
    return f"replica-{launch.replica}"


def for_replicas(spec: StackSpec) -> StackSpec:
    """``spec`` for the engines behind a front: its host and port are the front's."""
    return spec.model_copy(update={"serving": spec.serving.model_copy(update={"host": LOOPBACK, "port": None})})


def behind_front(launch: Launch) -> Launch:
    """``launch`` with the truth about who chose the address: adapters say that the stack file did."""
    arguments = tuple(
        argument.model_copy(update={"source": "plan", "why": "serving.host is the front's; only that reaches it"})
        if argument.why == "serving.host"
        else argument
        for argument in launch.arguments
    )
    return launch.model_copy(update={"arguments": arguments})
