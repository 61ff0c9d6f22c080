"""Recorded requests to replay: one JSON object a line, gzipped or not. Token counts and block hashes, no text.

Two formats are told apart by each line's keys:

- A session of callanjfox/kv-cache-tester: ``block_size`` and ``requests``, of which ``in``, ``out``, ``hash_ids`` and
  ``think_time`` are read; one of type ``subagent`` holds a session of its own. Hash ids are the session's own.
- A request of Mooncake: ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids`` of blocks of 512
  tokens, which are the same in every request of the file.

Times of the recorded engine are not used.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optistack.errors import InputError

BLOCK_TOKENS = 64
MOONCAKE_BLOCK_TOKENS = 512
MOST = 10**12
"""Tokens, or seconds, of a request: what is above is no recording of one."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """``hash_ids`` name the blocks of the prompt in order; the tokens behind the last whole block may have none.

    ``think_s``  pause before it, after the end of the request before
    ``forks``    sub-agents that start with it and that the next request waits for
    """

    input_tokens: int
    output_tokens: int
    hash_ids: tuple[Any, ...]
    think_s: float = 0.0
    forks: tuple[tuple[TraceRequest, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TraceSession:
    """``start_s`` is when it began in the recording, where that is known. ``local`` says that equal hash ids mean equal
    blocks within this session only. No two of a trace have the same ``name``."""

    name: str
    block_tokens: int
    requests: tuple[TraceRequest, ...]
    start_s: float | None = None
    local: bool = True


@dataclass(frozen=True, slots=True)
class Trace:
    """``skipped``: what was wrong with each line that was left out, with its number."""

    sessions: tuple[TraceSession, ...]
    skipped: tuple[str, ...]


def read_trace(path: Path) -> Trace:
    """The sessions of ``path``. Raises InputError when it cannot be read or no line of it is a session."""
    sessions: list[TraceSession] = []
    skipped: list[str] = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    sessions.append(_session(json.loads(line.decode()), number))
                except json.JSONDecodeError as error:
                    skipped.append(f"line {number}: not JSON ({error.msg} at column {error.colno})")
                except UnicodeDecodeError as error:
                    skipped.append(f"line {number}: not UTF-8 (byte {error.start + 1})")
                except (_BadLineError, RecursionError, ValueError) as error:
                    skipped.append(f"line {number}: {error}")
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"Trace {path} cannot be read: {why}.", fix="Give a .jsonl or .jsonl.gz file.") from None
    if not sessions:
        why = f"; {skipped[0]}" if skipped else ": it is empty"
        raise InputError(
            f"Trace {path} holds no session{why}.",
            fix='Each line is an object with "block_size" and "requests": [{"in", "out", "hash_ids", "think_time"}].',
        )
    return Trace(tuple(_apart(sessions)), tuple(skipped))


def _apart(sessions: Iterable[TraceSession]) -> Iterator[TraceSession]:
    """``sessions``, each with a name of its own: files that were put together may use one twice."""
    seen: dict[str, int] = {}  # with how often it came
    for session in sessions:
        name = session.name
        while name in seen:
            seen[session.name] += 1
            name = f"{session.name}, {seen[session.name]}"
        seen[name] = 1
        yield session if name == session.name else replace(session, name=name)


class _BadLineError(Exception):
    """What is wrong with a line."""


def _session(row: Any, number: int) -> TraceSession:
    if isinstance(row, dict) and "input_length" in row:
        return _mooncake(row, number)
    if not isinstance(row, dict) or not isinstance(row.get("requests"), list):
        raise _BadLineError('no object with a list "requests"')
    block_tokens = row.get("block_size", BLOCK_TOKENS)
    if isinstance(block_tokens, bool) or not isinstance(block_tokens, int) or block_tokens < 1:
        raise _BadLineError(f'"block_size" is {block_tokens!r} and no number of tokens')
    name = str(row.get("id", f"line-{number}")).encode(errors="replace").decode()  # JSON has halves of characters, too
    return TraceSession(name, block_tokens, _requests(row["requests"]))


def _mooncake(row: dict[str, Any], number: int) -> TraceSession:
    request = TraceRequest(
        max(1, int(_number(row, "input_length", 1))),
        max(1, int(_number(row, "output_length", 1))),
        tuple(_list(row, "hash_ids", 1)),
    )
    start_s = _number(row, "timestamp", 1) / 1000
    return TraceSession(f"line-{number}", MOONCAKE_BLOCK_TOKENS, (request,), start_s, local=False)


def _requests(rows: list[Any]) -> tuple[TraceRequest, ...]:
    requests: list[TraceRequest] = []
    forks: list[tuple[TraceRequest, ...]] = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise _BadLineError(f"request {number} is no object")
        if row.get("type") == "subagent":
            forks.append(_requests(_list(row, "requests", number)))
            continue
        hash_ids = tuple(_list(row, "hash_ids", number))
        prompt = max(1, int(_number(row, "in", number)))
        think_s = _number(row, "think_time", number, 0.0) if requests else 0.0
        requests.append(TraceRequest(prompt, max(1, int(_number(row, "out", number))), hash_ids, think_s, tuple(forks)))
        forks = []
    if not requests:
        raise _BadLineError("it has no request of its own")
    if forks:  # sub-agents that no request follows
        last = requests[-1]
        requests[-1] = TraceRequest(
            last.input_tokens, last.output_tokens, last.hash_ids, last.think_s, (*last.forks, *forks)
        )
    return tuple(requests)


def _list(request: dict[str, Any], key: str, number: int) -> list[Any]:
    value = request.get(key)
    if not isinstance(value, list):
        raise _BadLineError(f'request {number} has no list "{key}"')
    if key == "hash_ids" and not all(isinstance(one, int | str) for one in value):
        raise _BadLineError(f'request {number} has "hash_ids" that are neither numbers nor words')
    return value


def _number(request: dict[str, Any], key: str, number: int, default: float | None = None) -> float:
    value = request.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST:
        raise _BadLineError(f'request {number} has no number "{key}" from 0 to {MOST:,}')
    return value
