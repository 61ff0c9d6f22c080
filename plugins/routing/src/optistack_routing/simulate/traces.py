"""Recorded sessions as scripts of a simulation. Times of the recorded engine are not used: the simulated one has its
own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optistack.traces import TraceRequest
from optistack.traces import read_trace as read_recorded
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
    recorded = read_recorded(path)
    scripts = (_script(one.requests, one.block_tokens, think_limit_s) for one in recorded.sessions)
    return Trace(tuple(scripts), recorded.skipped)


def _script(requests: Sequence[TraceRequest], block_tokens: int, think_limit_s: float) -> Script:
    turns: list[Turn] = []
    before: Sequence[Any] = ()
    for request in requests:
        shared = min(_common(before, request.hash_ids) * block_tokens, request.input_tokens)
        forks = tuple(_script(fork, block_tokens, think_limit_s) for fork in request.forks)
        think_s = min(request.think_s, think_limit_s)
        turns.append(Turn(request.input_tokens, shared, request.output_tokens, think_s, forks))
        before = request.hash_ids
    return Script(tuple(turns))


def _common(before: Sequence[Any], blocks: Sequence[Any]) -> int:
    for at, (one, other) in enumerate(zip(before, blocks, strict=False)):
        if one != other:
            return at
    return min(len(before), len(blocks))
