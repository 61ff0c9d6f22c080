"""The decisions: the policy and its numbers, whether a router is started, each with its reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from optistack.errors import InputError
from optistack.settings import UNSET, EngineArgument, Routing, Serving, Value, choose, suggest
from optistack_routing.options import SESSION_POLICIES
from optistack_routing.policy.parameters import Parameters

if TYPE_CHECKING:
    from optistack.context import PlanContext
    from optistack_routing.options import Options

SESSION_HEADER = "x-session-id"
EVENTS, REPLAY = "ipc://{replica.folder}/kv-events", "ipc://{replica.folder}/kv-replay"
"""Where a replica publishes its KV events: files, which nobody on the network can reach, as no password guards them."""

TRACES = "https://github.com/callanjfox/kv-cache-tester"
SIMULATION = "evidence/routing-simulation"

_KNOWS = {
    "session_header": SESSION_POLICIES,
    "session_idle_s": ("kv-aware",),
    "max_homes": ("kv-aware",),
    "overload_margin": ("kv-aware",),
    "parameters": ("kv-aware",),
    "precise": ("kv-aware",),
    "load_bound": ("affinity",),
}
"""Which policies an option means something to."""

_WHY = {
    "kv-aware": "a turn finds its session's KV, and a crowded replica gives sessions away: pinned sessions alone leave "
    "the replicas' load uneven, with a variance near (1 - duty cycle) times the mean",
    "affinity": "no state: a session is hashed onto a replica, and onto its next one when that is too busy",
    "least-loaded": "even load; a turn finds its session's KV by chance only",
    "round-robin": "the same number of requests for each replica, whatever they cost",
    "random": "no state at all",
}


def decide(ctx: PlanContext) -> Routing:
    """The policy as settings. Raises InputError for an option that means nothing here."""
    options: Options = ctx.options
    for name, policies in _KNOWS.items():
        if getattr(options, name) and options.policy not in policies:
            raise InputError(
                f"Option {name} of plugin routing means nothing to the policy {options.policy}.",
                fix=f"Leave it out, or set policy to {' or '.join(policies)}.",
            )
    front = _front(ctx)
    if options.precise and not front.value:
        raise InputError(
            "Option precise of plugin routing is for the router, and none is started.",
            fix="Set front to true, or leave precise out.",
        )
    sessions, moves = options.policy in SESSION_POLICIES, options.policy == "kv-aware"
    default = Parameters()
    return Routing(
        front=front,
        policy=choose(options.policy, why=_WHY[options.policy]),
        target_concurrency=_given(options, "target_concurrency")
        or suggest(ctx.workload.concurrency, why="workload.concurrency of the stack file"),
        session_header=_given(options, "session_header") or _header() if sessions else UNSET,
        max_homes=_given(options, "max_homes") or _simulated(default.max_homes) if moves else UNSET,
        overload_margin=_given(options, "overload_margin") or _margin(default.overload_margin) if moves else UNSET,
        session_idle_s=_given(options, "session_idle_s") or _idle(default.session_idle_s) if moves else UNSET,
        parameters=_parameters(options, default),
        precise=choose(True, why="option precise") if options.precise else UNSET,
        serving=Serving(prefix_caching=_prefix_caching()) if sessions else None,
        arguments=tuple(_events()) if options.precise else (),
    )


def _front(ctx: PlanContext) -> Value[bool]:
    replicas = ctx.parallel.replicas
    if ctx.options.front is not None:
        return choose(bool(ctx.options.front), why="option front")
    return suggest(True, why=f"{replicas} replicas need one address") if replicas > 1 else UNSET


def _given(options: Options, name: str) -> Value[Any] | None:
    value = getattr(options, name)
    return None if value is None else choose(value, why=f"option {name}")


def _header() -> Value[str]:
    return suggest(SESSION_HEADER, why="what vllm-router, llm-d and Ray Serve read too")


def _idle(seconds: float) -> Value[float]:
    return suggest(
        seconds,
        why="agents pause 10 s in the median and 199 s in the mean between turns; after much more their KV is gone",
        reference=TRACES,
    )


def _simulated(value: int) -> Value[int]:
    return suggest(
        value, why="the least recomputation at an even load, in the replay of agents' traces", reference=SIMULATION
    )


def _margin(requests: float) -> Value[float]:
    return suggest(
        requests, why="in requests, not as a ratio: the mean is about as small as the target", reference=SIMULATION
    )


def _parameters(options: Options, default: Parameters) -> Value[dict[str, Any]]:
    if options.policy == "affinity":
        if options.load_bound is not None:
            return choose({"load_bound": options.load_bound}, why="option load_bound")
        return suggest({"load_bound": default.load_bound}, why="without a bound the load is that of random placement")
    return choose(dict(options.parameters), why="option parameters") if options.parameters else UNSET


def _prefix_caching() -> Value[bool]:
    return suggest(True, why="a session is kept on its replica for the KV that is cached there")


def _events() -> list[EngineArgument]:
    """KV events, published where only this machine reads them; both engines bind to such an address."""
    where = {"publisher": "zmq", "endpoint": _own(EVENTS), "replay_endpoint": _own(REPLAY)}
    return [
        EngineArgument(
            backend=backend,
            name="--kv-events-config",
            value=json.dumps({**switch, **where}),
            why="routing.precise: the router learns what the cache holds",
        )
        for backend, switch in (("vllm", {"enable_kv_cache_events": True}), ("sglang", {}))
    ]


def _own(address: str) -> str:
    return address.replace("{replica.folder}", "{folder}")
