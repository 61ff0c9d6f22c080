"""Prompts in a file: JSON Lines, each line with ``ids``, or ``prompt`` (text), or ``messages`` (a chat)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from optistack.errors import InputError


class Prompt(NamedTuple):
    """One of ``kind`` "ids" (list of int), "prompt" (str) or "messages" (list of dict), and what the file has there."""

    kind: str
    given: Any


_SHAPES: dict[str, tuple[type, type | None]] = {"ids": (list, int), "prompt": (str, None), "messages": (list, dict)}


def read_prompt_file(file: Path) -> list[Prompt]:
    """Blank lines are passed over. InputError naming the line that has none of the three, or more than one."""
    try:
        # Not splitlines: JSON may have other ends of lines, such as U+2028, in a string.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.", fix="Give a file of prompts.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not text in UTF-8.", fix="Give a file of prompts in JSON Lines.") from error
    prompts = [_prompt(line, number, file) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InputError(f"{file} holds no prompts.")
    return prompts


def _prompt(line: str, number: int, file: Path) -> Prompt:
    try:
        one = json.loads(line)
        (kind,) = _SHAPES.keys() & set(one)
        shape, inner = _SHAPES[kind]
        fits = isinstance(one[kind], shape) and one[kind]
        if not fits or (inner and not all(isinstance(part, inner) for part in one[kind])):
            raise ValueError(kind)
    except (ValueError, TypeError):
        raise InputError(
            f"Line {number} of {file} is no prompt.",
            fix='Write each line as {"prompt": "text"}, {"messages": [...]} or {"ids": [...]}.',
        ) from None
    return Prompt(kind, one[kind])
