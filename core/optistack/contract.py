"""What a plugin did wrong, in one sentence for its author and for whoever has it installed."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pluggy
from pydantic import ValidationError

from optistack import hookspecs
from optistack.errors import nearest

HOOKS = {
    name: tuple(inspect.signature(function).parameters)
    for name, function in vars(hookspecs).items()
    if name.startswith("optistack_") and inspect.isfunction(function)
}
"""Every hook and the names of its arguments."""


def in_one_line(error: BaseException) -> str:
    """The type of ``error`` and what it says, on one line: pydantic and many others say it over several."""
    if isinstance(error, ValidationError):
        first, count = error.errors()[0], error.error_count()
        place = ".".join(str(step) for step in (error.title, *first["loc"]))
        return f"{place}: {first['msg']}" + (f" ({count - 1} more)" if count > 1 else "")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def breach(error: pluggy.PluginValidationError) -> str:
    """What pluggy found against a hook implementation. Its own text prints the module and names no remedy."""
    text = str(error)
    if unknown := re.search(r"unknown hook '(\w+)'", text):
        return f"there is no hook {unknown[1]}. {nearest(unknown[1], HOOKS)}"
    hook = re.search(r"for hook '(\w+)'", text)
    extra = re.search(r"Argument\(s\) \{(.*)\} are declared", text)
    if hook and extra and hook[1] in HOOKS:
        known = ", ".join(HOOKS[hook[1]]) or "none"
        return f"{hook[1]} has no argument {extra[1]}. Its arguments: {known}."
    return text.splitlines()[-1].strip() if text.strip() else type(error).__name__


def unmarked_hooks(module: Any, implemented: tuple[str, ...]) -> list[str]:
    """Functions of ``module`` that have a hook's name and no ``@hookimpl``: they would never be called."""
    return [name for name in HOOKS if name not in implemented and inspect.isroutine(getattr(module, name, None))]
