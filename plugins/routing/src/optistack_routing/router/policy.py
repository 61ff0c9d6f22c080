"""The policy that a router was asked for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from optistack.errors import InputError, nearest
from optistack_routing.policy.base import Policy
from optistack_routing.policy.factory import make_policy
from optistack_routing.policy.parameters import Parameters

_LEAST = {
    "max_homes": 1,
    "tokens_per_request": 1,
    "split_requests": 1,
    "rehome_window_s": 1,
    "kv_tokens": 1,
    "session_idle_s": 1,
    "max_sessions": 1,
    "load_bound": 1,
}
"""What the policies cannot do with less of; 0 for the others."""


def policy_of(name: str, parameters: dict[str, Any], seed: int) -> Policy:
    """Raises InputError for a name or a parameter that is not known."""
    return make_policy(name, parameters_of(parameters), seed)


def parameters_of(given: dict[str, Any]) -> Parameters:
    """``given`` over the defaults. Raises InputError with the nearest name."""
    known = [field.name for field in fields(Parameters)]
    for name, value in given.items():
        if name not in known:
            raise InputError(f"The policies have no parameter {name!r}.", fix=nearest(name, known))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"Parameter {name} is {value!r}.", fix="Give a number.")
        least = _LEAST.get(name, 0)
        if not value >= least:  # as for nan, which is no number either
            raise InputError(f"Parameter {name} is {value!r}.", fix=f"Give a number from {least:g} on.")
    return Parameters(**given)
