"""Requests do not disturb each other, and one that is given up is given up."""

from __future__ import annotations

import time

import pytest

from optistack_conformance.client import COMPLETIONS, Client
from optistack_conformance.engine import EngineInfo, running_requests
from optistack_conformance.evals.copying import items
from optistack_conformance.selection import Selection

FREED_WITHIN_S = 10.0
LONG = 2_000


def test_cancelled_stream_is_freed(candidate: Client, engine: EngineInfo) -> None:
    """A client that goes away frees its place: the engine has no running request soon after."""
    before = running_requests(candidate)
    if before is None:
        pytest.skip("the server does not say how many requests run")
    limit = min(LONG, (engine.max_tokens or LONG) - 16)
    fields = {"prompt": "Count: one, two,", "max_tokens": limit, "temperature": 0.0, "ignore_eos": True}
    with candidate.open_stream(COMPLETIONS, **fields) as lines:
        next(lines)
    deadline = time.monotonic() + FREED_WITHIN_S
    while (running := running_requests(candidate)) and running > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not running or running <= before, (
        f"{running:g} requests still run {FREED_WITHIN_S:g} s after the client left"
    )


def test_requests_do_not_leak_into_each_other(candidate: Client, selection: Selection) -> None:
    """Copying tasks at once: no answer has words of another's line that are not in its own prompt."""
    tasks = items(2 * selection.concurrency)

    def ask(index: int, limit: int = 24) -> tuple[str, int]:
        fields = {"prompt": tasks[index].prompt, "max_tokens": limit, "temperature": 0.0, "stop": ["\n"]}
        body = candidate.ask(COMPLETIONS, **fields)
        return body["choices"][0]["text"], body["usage"]["prompt_tokens"]

    alone = [ask(index, 1)[1] for index in range(len(tasks))]
    together = candidate.parallel(ask, range(len(tasks)), selection.concurrency)
    for index, (text, tokens) in enumerate(together):
        assert tokens == alone[index], f"request {index} had {tokens} prompt tokens in a batch and {alone[index]} alone"
        others = {task.reference.strip() for number, task in enumerate(tasks) if number != index}
        assert text.strip() not in others, f"request {index} got the answer of another: {text!r}"


def test_ids_are_unique(candidate: Client, selection: Selection) -> None:
    """Every answer has an id of its own."""
    bodies = candidate.parallel(
        lambda number: candidate.ask(COMPLETIONS, prompt=f"Number {number}", max_tokens=1),
        range(selection.concurrency),
        selection.concurrency,
    )
    assert len({body["id"] for body in bodies}) == len(bodies)
