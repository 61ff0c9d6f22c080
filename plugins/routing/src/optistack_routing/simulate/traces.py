"""Recorded sessions: one JSON object a line, as in callanjfox/kv-cache-tester, gzipped or not.

Of each request ``in``, ``out``, ``hash_ids`` and ``think_time`` are read; one of type ``subagent`` holds a session of
its own. Times of the recorded engine are not used, since the simulated one has its own.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optistack.errors import InputError
from optistack_routing.simulate.workload import Script, Turn

THINK_LIMIT_S = 30.0
"""Longer pauses are cut to this: they are a person's, who has left, and no closed loop. The sample's mean falls from
202 s to 15 s, its median is 11 s."""


@dataclass(frozen=True, slots=True)
class Trace:
    """``skipped``: what was wrong with each line that was left out, with its number."""

    scripts: tuple[Script, ...]
    skipped: tuple[str, ...]


def read_trace(path: Path, *, think_limit_s: float = THINK_LIMIT_S) -> Trace:
    """The sessions of ``path``. Raises InputError when it cannot be read or no line of it is a session."""
    scripts: list[Script] = []
    skipped: list[str] = []
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    scripts.append(_session(json.loads(line), think_limit_s))
                except json.JSONDecodeError as error:
                    skipped.append(f"line {number}: not JSON ({error.msg} at column {error.colno})")
                except _BadSessionError as error:
                    skipped.append(f"line {number}: {error}")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"Trace {path} cannot be read: {why}.", fix="Give a .jsonl or .jsonl.gz file.") from None
    if not scripts:
        why = f"; {skipped[0]}" if skipped else ": it is empty"
        raise InputError(
            f"Trace {path} holds no session{why}.",
            fix='Each line is an object with "block_size" and "requests": [{"in", "out", "hash_ids", "think_time"}].',
        )
    return Trace(tuple(scripts), tuple(skipped))


class _BadSessionError(Exception):
    """What is wrong with a line."""


def _session(row: Any, think_limit_s: float) -> Script:
    if not isinstance(row, dict) or not isinstance(row.get("requests"), list):
        raise _BadSessionError('no object with a list "requests"')
    block_tokens = row.get("block_size", 64)
    if not isinstance(block_tokens, int) or block_tokens < 1:
        raise _BadSessionError(f'"block_size" is {block_tokens!r} and no number of tokens')
    return _script(row["requests"], block_tokens, think_limit_s)


def _script(requests: list[Any], block_tokens: int, think_limit_s: float) -> Script:
    turns: list[Turn] = []
    before: list[int] = []
    forks: list[Script] = []
    for number, request in enumerate(requests, start=1):
        if not isinstance(request, dict):
            raise _BadSessionError(f"request {number} is no object")
        if request.get("type") == "subagent":
            forks.append(_script(_list(request, "requests", number), block_tokens, think_limit_s))
            continue
        blocks = _list(request, "hash_ids", number)
        prompt = max(1, int(_number(request, "in", number)))
        shared = min(_common(before, blocks) * block_tokens, prompt)
        think_s = min(_number(request, "think_time", number, 0.0), think_limit_s) if turns else 0.0
        output = max(1, int(_number(request, "out", number)))
        turns.append(Turn(prompt, shared, output, think_s, tuple(forks)))
        forks, before = [], blocks
    if not turns:
        raise _BadSessionError("it has no request of its own")
    if forks:  # sub-agents that no turn follows
        last = turns[-1]
        turns[-1] = Turn(
            last.prompt_tokens, last.shared_tokens, last.output_tokens, last.think_s, (*last.forks, *forks)
        )
    return Script(tuple(turns))


def _list(request: dict[str, Any], key: str, number: int) -> list[Any]:
    value = request.get(key)
    if not isinstance(value, list):
        raise _BadSessionError(f'request {number} has no list "{key}"')
    return value


def _number(request: dict[str, Any], key: str, number: int, default: float | None = None) -> float:
    value = request.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise _BadSessionError(f'request {number} has no number "{key}" of at least 0')
    return value


def _common(before: list[Any], blocks: list[Any]) -> int:
    for at, (one, other) in enumerate(zip(before, blocks, strict=False)):
        if one != other:
            return at
    return min(len(before), len(blocks))
