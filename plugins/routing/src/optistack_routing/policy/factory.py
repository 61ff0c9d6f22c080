"""Policies by name."""

from __future__ import annotations

from optistack.errors import InputError
from optistack_routing.policy.base import Policy
from optistack_routing.policy.kv_aware import KvAware
from optistack_routing.policy.least_loaded import LeastLoaded
from optistack_routing.policy.parameters import Parameters
from optistack_routing.policy.stateless import Affinity, RoundRobin, Uniform

POLICIES = ("kv-aware", "affinity", "least-loaded", "round-robin", "random")


def make_policy(name: str, parameters: Parameters | None = None, seed: int = 0) -> Policy:
    """A fresh policy. ``seed`` is for the policy ``random``. Raises InputError for a name that is none of POLICIES."""
    parameters = parameters or Parameters()
    match name:
        case "kv-aware":
            return KvAware(parameters)
        case "affinity":
            return Affinity(parameters.load_bound)
        case "least-loaded":
            return LeastLoaded()
        case "round-robin":
            return RoundRobin()
        case "random":
            return Uniform(seed)
    raise InputError(f"There is no policy {name!r}.", fix=f"Use one of {', '.join(POLICIES)}.")
