"""The policy that a router was asked for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from optistack.errors import InputError, nearest
from optistack_routing.policy.parameters import Parameters


def read_parameters(given: dict[str, Any]) -> Parameters:
    """The policies' numbers, the defaults where nothing is given. Raises InputError."""
    known = [field.name for field in fields(Parameters)]
    for name in given:
        if name not in known:
            raise InputError(f"There is no parameter {name!r}.", fix=nearest(name, known))
    try:
        return TypeAdapter(Parameters).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"parameters.{first['loc'][0]}: {first['msg']}.", fix="docs/router.md lists them.") from None
