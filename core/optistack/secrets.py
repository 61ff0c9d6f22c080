"""Words that nobody should read over a shoulder: told by the names of the flags and variables that carry them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optistack.plan.plan import Plan

HIDDEN = "***"

_NAME = re.compile(r"(?:api[-_]?key|[-_]token|passw(?:or)?d|passphrase|secret|(?:access|secret|private)[-_]key)$", re.I)


def is_secret(name: str) -> bool:
    """Whether the flag or variable ``name`` carries a secret, as ``--api-key`` and ``HF_TOKEN`` do."""
    return _NAME.search(name) is not None


def shown(name: str, value: str | None) -> str | None:
    """``value`` of the flag or variable ``name`` as it may be shown."""
    return HIDDEN if value and is_secret(name) else value


def words_shown(words: Sequence[str]) -> list[str]:
    """A command line as it may be shown, written as ``--flag=value`` or as two words."""
    told: list[str] = []
    secret = False
    for word in words:
        flag, equals, _ = word.partition("=")
        if secret and not word.startswith("-"):
            told.append(HIDDEN)
        elif equals and is_secret(flag):
            told.append(f"{flag}={HIDDEN}")
        else:
            told.append(word)
        secret = not equals and word.startswith("-") and is_secret(word)
    return told


def json_shown(data: Any) -> Any:
    """A plan's JSON values as they may be shown."""
    if isinstance(data, list):
        return [json_shown(item) for item in data]
    if not isinstance(data, dict):
        return data
    told = {key: json_shown(value) for key, value in data.items()}
    if isinstance(told.get("engine_args"), list):
        told["engine_args"] = words_shown(told["engine_args"])
    name = told.get("flag", told.get("name"))
    if isinstance(name, str) and isinstance(told.get("value"), str):
        told["value"] = shown(name, told["value"])
    return told


def secrets_of(plan: Plan) -> tuple[str, ...]:
    """Flags and variables of the launch that carry a secret."""
    launches = [*plan.launches, *([plan.front] if plan.front else [])]
    names = [argument.flag for launch in launches for argument in launch.arguments if argument.value]
    names += [variable.name for launch in launches for variable in launch.variables]
    return tuple(dict.fromkeys(name for name in names if is_secret(name)))
