"""A request that is given up is given up: its place, and its share of every step, go to others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from optistack_conformance.client import COMPLETIONS, Client
from optistack_conformance.engine import EngineInfo, generated_tokens, running_requests

FREED_WITHIN_S = 10.0
ENDED_WITHIN_S = 20.0
"""What a machine that stood still freed late is freed by then."""
ATTEMPTS = 2
"""What leaks does so each time; a machine does not stand still twice."""
LIMITS = (2_000, 20_000)
"""Tokens that are asked for. A fast engine is through with the first before anybody looks."""


class TooFastError(Exception):
    """The engine was through, or half through, before the client left."""


def test_cancelled_stream_is_freed(candidate: Client, engine: EngineInfo) -> None:
    """A client that goes away frees its place: the engine has no running request soon after, and has not written the
    answer to its end."""
    before = running_requests(candidate)
    if before is None:
        pytest.skip("the server does not say how many requests run")
    most = (engine.max_tokens or LIMITS[0]) - 16
    for limit in sorted({min(limit, most) for limit in LIMITS}):
        with contextlib.suppress(TooFastError):
            reason = _leaks(candidate, limit, before)
            assert not reason, reason
            return
    pytest.skip(f"the server wrote {limit} tokens, or counted no running request, before the client could leave")


def _leaks(candidate: Client, limit: int, before: float) -> str | None:
    """How a request for ``limit`` tokens ran on each time after its client had left; None when it was freed once."""
    for _ in range(ATTEMPTS):
        reason = _ran_on(candidate, limit, before)
        if not reason or not _within(ENDED_WITHIN_S, lambda: _running(candidate) <= before):
            break
    return reason


def _ran_on(candidate: Client, limit: int, before: float) -> str | None:
    """As :func:`_leaks`, for one request, on an engine that ran ``before`` other ones. Raises TooFastError."""
    written = generated_tokens(candidate)
    fields = {"prompt": "Count: one, two,", "max_tokens": limit, "temperature": 0.0, "ignore_eos": True}
    with candidate.open_stream(COMPLETIONS, **fields) as lines:
        # Before it is counted, a count as before says nothing: SGLang counts every 40 steps.
        if not any(_running(candidate) > before for _ in lines):
            raise TooFastError
        left = generated_tokens(candidate)
    if written is not None and left is not None and left - written > limit / 2:
        raise TooFastError
    if not _within(FREED_WITHIN_S, lambda: _running(candidate) <= before):
        return f"{_running(candidate):g} requests still run {FREED_WITHIN_S:g} s after the client left"
    # A fast engine comes to the end of the answer before anybody looks.
    after = generated_tokens(candidate)
    if before == 0 and written is not None and after is not None and after - written >= limit:
        return f"the engine wrote all {limit} tokens of an answer whose client had left"
    return None


def _running(candidate: Client) -> float:
    return running_requests(candidate) or 0.0


def _within(seconds: float, true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
