"""A request that is given up is given up: its place, and its share of every step, go to others."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from optistack_conformance.client import COMPLETIONS, Client
from optistack_conformance.engine import EngineInfo, generated_tokens, running_requests

COUNTED_WITHIN_S = 30.0
"""SGLang counts what runs every 40 steps, which a slow machine takes seconds for."""
FREED_WITHIN_S = 10.0
ENDED_WITHIN_S = 120.0
"""What leaked comes to its end some time, and only then another try says something."""
LONG = 600
ATTEMPTS = 2
"""What leaks does so each time; a machine that stood still for seconds does not do that twice."""


def test_cancelled_stream_is_freed(candidate: Client, engine: EngineInfo) -> None:
    """A client that goes away frees its place: the engine has no running request soon after, and has not written the
    answer to its end."""
    before = running_requests(candidate)
    if before is None:
        pytest.skip("the server does not say how many requests run")
    limit = min(LONG, (engine.max_tokens or LONG) - 16)
    for _ in range(ATTEMPTS):
        reason = _ran_on(candidate, limit, before)
        if not reason or not _within(ENDED_WITHIN_S, lambda: _running(candidate) <= before):
            break
    assert not reason, reason


def _ran_on(candidate: Client, limit: int, before: float) -> str | None:
    """How a request for ``limit`` tokens ran on after its client had left, on an engine that ran ``before`` other
    ones; None when it was freed."""
    written = generated_tokens(candidate)
    fields = {"prompt": "Count: one, two,", "max_tokens": limit, "temperature": 0.0, "ignore_eos": True}
    with candidate.open_stream(COMPLETIONS, **fields) as lines:
        next(lines)
        # Before it is counted, a count as before says nothing.
        if not _within(COUNTED_WITHIN_S, lambda: _running(candidate) > before):
            pytest.skip("the server counts no running request while one runs")
    if not _within(FREED_WITHIN_S, lambda: _running(candidate) <= before):
        return f"{_running(candidate):g} requests still run {FREED_WITHIN_S:g} s after the client left"
    # A fast engine comes to the end of the answer before anybody looks.
    after = generated_tokens(candidate)
    if before == 0 and written is not None and after is not None and after - written >= limit:
        return f"the engine wrote all {limit} tokens of an answer whose client had left after the first"
    return None


def _running(candidate: Client) -> float:
    return running_requests(candidate) or 0.0


def _within(seconds: float, true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
