"""The decisions: the policy and its numbers, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optistack.errors import InputError
from optistack.settings import UNSET, Routing, Serving, Value, choose, suggest
from optistack_routing.options import SESSION_POLICIES

if TYPE_CHECKING:
    from optistack.context import PlanContext
    from optistack_routing.options import Options

SESSION_HEADER = "x-session-id"
HOMES = 2
OVERLOAD_MARGIN = 2
SESSION_IDLE_S = 1800.0

TRACES = "https://github.com/callanjfox/kv-cache-tester"

_KNOWS = {
    "session_header": SESSION_POLICIES,
    "session_idle_s": SESSION_POLICIES,
    "max_homes": ("kv-aware",),
    "overload_margin": ("kv-aware",),
}
"""Which policies an option means something to."""


def decide(ctx: PlanContext) -> Routing:
    """The policy as settings. Raises InputError for an option that the policy has no use for."""
    options: Options = ctx.options
    for name, policies in _KNOWS.items():
        if getattr(options, name) is not None and options.policy not in policies:
            raise InputError(
                f"Option {name} of plugin routing means nothing to the policy {options.policy}.",
                fix=f"Leave it out, or set policy to {' or '.join(policies)}.",
            )
    sessions = options.policy in SESSION_POLICIES
    moves = options.policy == "kv-aware"
    return Routing(
        policy=choose(options.policy, why=_WHY[options.policy]),
        target_concurrency=_target(ctx),
        session_header=_given(options, "session_header") or _header() if sessions else UNSET,
        session_idle_s=_given(options, "session_idle_s") or _idle() if sessions else UNSET,
        max_homes=(_given(options, "max_homes") or _homes()) if moves else _one_home(sessions),
        overload_margin=_given(options, "overload_margin") or _margin() if moves else UNSET,
        serving=Serving(prefix_caching=_prefix_caching()) if sessions else None,
    )


_WHY = {
    "kv-aware": "a turn finds its session's KV, and a crowded replica gives sessions away: pinned sessions alone leave "
    "the replicas' load uneven, with a variance near (1 - duty cycle) times the mean",
    "affinity": "a turn always finds its session's KV; nothing evens out the load",
    "least-loaded": "even load; a turn finds its session's KV by chance only",
    "round-robin": "the same number of requests for each replica, whatever they cost",
    "random": "no state at all",
}


def _given(options: Options, name: str) -> Value[Any] | None:
    value = getattr(options, name)
    return None if value is None else choose(value, why=f"option {name}")


def _target(ctx: PlanContext) -> Value[int]:
    asked = _given(ctx.options, "target_concurrency")
    return asked or suggest(ctx.workload.concurrency, why="workload.concurrency of the stack file")


def _header() -> Value[str]:
    return suggest(SESSION_HEADER, why="what vllm-router, llm-d and Ray Serve read too")


def _idle() -> Value[float]:
    return suggest(
        SESSION_IDLE_S,
        why="agents pause 10 s in the median and 199 s in the mean between turns; after much more their KV is gone",
        reference=TRACES,
    )


def _homes() -> Value[int]:
    return suggest(
        HOMES, why="the lighter of two warm replicas is enough to even out load; each more is a copy of the KV"
    )


def _one_home(sessions: bool) -> Value[int]:
    return choose(1, why="affinity keeps a session on one replica") if sessions else UNSET


def _margin() -> Value[int]:
    return suggest(OVERLOAD_MARGIN, why="in requests, not as a ratio: the mean is about as small as the target")


def _prefix_caching() -> Value[bool]:
    return suggest(True, why="a session is kept on its replica for the KV that is cached there")
