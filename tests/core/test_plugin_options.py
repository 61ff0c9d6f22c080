"""Options of the built-in plugins: what no stack file can mean is refused where it is read."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from optistack.host import Host

MAY_BE_UNLIMITED = {"routing"}
"""Its limits may be switched off by .inf."""


def numbers() -> list[Any]:
    return [
        pytest.param(plugin.info.options, name, id=f"{plugin.name}.{name}")
        for plugin in Host.from_environment().plugins()
        if plugin.info.options
        for name, field in plugin.info.options.model_fields.items()
        if float in (field.annotation, *get_args(field.annotation)) and plugin.name not in MAY_BE_UNLIMITED
    ]


@pytest.mark.parametrize(("options", "name"), numbers())
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_no_number_is_infinite(options: Any, name: str, value: float) -> None:
    with pytest.raises(ValidationError, match="finite number"):
        TypeAdapter(options).validate_python({name: value})
