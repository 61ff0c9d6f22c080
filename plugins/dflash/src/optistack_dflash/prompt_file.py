"""Prompts in a file: JSON Lines, each line with ``ids``, or ``prompt`` (text), or ``messages`` (a chat)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from optistack.errors import InputError
from optistack.files import numbered_lines, read_json_line


class Prompt(NamedTuple):
    """One of ``kind`` "ids" (list of int), "prompt" (str) or "messages" (list of dict), and what the file has there."""

    kind: str
    given: Any


_FORM = 'Write each line as {"prompt": "text"}, {"messages": [...]} or {"ids": [...]}.'
_SHAPES: dict[str, tuple[type, type | None]] = {"ids": (list, int), "prompt": (str, None), "messages": (list, dict)}


def read_prompt_file(file: Path) -> list[Prompt]:
    """Blank lines are passed over. InputError naming the line that has none of the three, or more than one."""
    lines = numbered_lines(file, fix="Give a file of prompts in JSON Lines.")
    prompts = [_prompt(line, number, file) for number, line in lines]
    if not prompts:
        raise InputError(f"{file} holds no prompts.", fix=_FORM)
    return prompts


def _prompt(line: str, number: int, file: Path) -> Prompt:
    try:
        one = read_json_line(line)
        (kind,) = _SHAPES.keys() & set(one)
        shape, inner = _SHAPES[kind]
        fits = isinstance(one[kind], shape) and one[kind]
        if not fits or (inner and not all(isinstance(part, inner) for part in one[kind])):
            raise ValueError(kind)
    except (ValueError, TypeError):
        raise InputError(
            f"Line {number} of {file} is no prompt.",
            fix=_FORM,
        ) from None
    return Prompt(kind, one[kind])
