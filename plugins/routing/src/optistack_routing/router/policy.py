"""The policy that a router was asked for."""

from __future__ import annotations

from typing import Any

from optistack.errors import InputError
from optistack_routing.policy.base import Policy
from optistack_routing.policy.least_loaded import LeastLoaded


def policy_of(name: str, parameters: dict[str, Any], seed: int) -> Policy:
    """Raises InputError for a name or a parameter that is not known."""
    if name != "least-loaded":
        raise InputError(f"There is no policy {name!r}.", fix="Known: least-loaded.")
    return LeastLoaded()
