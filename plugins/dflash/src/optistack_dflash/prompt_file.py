"""Prompts in a file: JSON Lines, each line with ``ids``, or ``prompt`` (text), or ``messages`` (a chat)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from optistack.errors import InputError
from optistack.files import numbered_lines, read_json_line


class Prompt(NamedTuple):
    """One of ``kind`` "ids" (list of int), "prompt" (str) or "messages" (list of dict), what the file has there, and
    ``where`` that is."""

    kind: str
    given: Any
    where: str = ""


_FORM = 'Write each line as {"prompt": "text"}, {"messages": [...]} or {"ids": [...]}.'
_ROLES = ("system", "developer", "user", "assistant", "tool")


def read_prompt_file(file: Path) -> list[Prompt]:
    """Blank lines are passed over. InputError naming the line that has none of the three, or more than one, or a
    message of another role or without content."""
    lines = numbered_lines(file, fix="Give a file of prompts in JSON Lines.")
    prompts = [_prompt(line, f"Line {number} of {file}") for number, line in lines]
    if not prompts:
        raise InputError(f"{file} holds no prompts.", fix=_FORM)
    return prompts


def _prompt(line: str, where: str) -> Prompt:
    try:
        one = read_json_line(line)
        (kind,) = _KINDS.keys() & set(one)
        if not one[kind] or not _KINDS[kind](one[kind]):
            raise ValueError(kind)
    except (ValueError, TypeError):
        raise InputError(f"{where} is no prompt.", fix=_FORM) from None
    for message in one[kind] if kind == "messages" else ():
        if message.get("role") not in _ROLES:
            fix = f"Roles are {', '.join(_ROLES)}."
            raise InputError(f"{where} has a message of the role {message.get('role')!r}.", fix=fix)
        if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            raise InputError(f"{where} has a message without content.", fix="Give its text as content.")
    return Prompt(kind, one[kind], where)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "ids": lambda given: isinstance(given, list) and all(type(part) is int and part >= 0 for part in given),
    "prompt": lambda given: isinstance(given, str),
    "messages": lambda given: isinstance(given, list) and all(isinstance(part, dict) for part in given),
}
