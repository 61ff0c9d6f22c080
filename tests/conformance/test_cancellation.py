"""What the case of a cancelled stream makes of engines that free a request, late, not at all, or cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from optistack.verify.metrics import Metrics, parse_metrics
from optistack_conformance.client import Client
from optistack_conformance.engine import EngineInfo
from optistack_conformance.tiers.contract import test_cancellation as case


class Engine:
    """Counts what runs. ``leaks`` of its first streams run on, until the count was read ``ends_after`` times.
    ``writes_on``: to the end, though it frees the request; ``fast``: up to so many before the first event is out."""

    def __init__(
        self,
        *,
        leaks: int = 0,
        ends_after: int = 10**6,
        writes_on: bool = False,
        fast: int = 0,
        counts: bool = True,
    ) -> None:
        self.fast = fast
        self.leaks, self.ends_after, self.writes_on, self.counts = leaks, ends_after, writes_on, counts
        self.running, self.written, self.reads, self.streams = 0, 0, 0, 0

    def metrics(self) -> Metrics:
        if self.running and self.streams <= self.leaks:
            self.reads += 1
            self.running = int(self.reads < self.ends_after)
        lines = [f"vllm:generation_tokens_total {self.written}", f"vllm:num_requests_running {self.running}"]
        return parse_metrics("\n".join([*lines, ""])) if self.counts else Metrics(())

    @contextmanager
    def open_stream(self, _: str, **fields: Any) -> Iterator[Iterator[str]]:
        self.streams, self.reads, self.running = self.streams + 1, 0, 1
        self.written += min(self.fast, fields["max_tokens"])
        yield iter(["{}"])
        leaked = self.streams <= self.leaks
        self.running = int(leaked)
        self.written += fields["max_tokens"] if leaked or self.writes_on else 1


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case, "FREED_WITHIN_S", 0.15)


def judge(engine: Engine) -> None:
    case.test_cancelled_stream_is_freed(cast(Client, engine), EngineInfo("vllm", "0", "m", max_tokens=4096))


def test_a_freed_request_passes_at_the_first_try() -> None:
    engine = Engine()
    judge(engine)
    assert engine.streams == 1


def test_a_machine_that_stood_still_once_passes() -> None:
    engine = Engine(leaks=1, ends_after=20)
    judge(engine)
    assert engine.streams == 2


def test_what_runs_on_each_time_fails() -> None:
    with pytest.raises(AssertionError, match="still run"):
        judge(Engine(leaks=9, ends_after=20))


def test_what_never_ends_fails_at_the_first_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case, "ENDED_WITHIN_S", 0.15)
    engine = Engine(leaks=1)
    with pytest.raises(AssertionError, match="still run"):
        judge(engine)
    assert engine.streams == 1


def test_an_answer_written_to_its_end_before_anybody_looked_fails() -> None:
    with pytest.raises(AssertionError, match="wrote all 2000 tokens"):
        judge(Engine(writes_on=True))


def test_a_fast_engine_is_asked_for_more() -> None:
    engine = Engine(fast=1_500)
    judge(engine)
    assert engine.streams == 2


def test_an_answer_that_was_written_before_the_client_could_leave_is_not_judged() -> None:
    with pytest.raises(pytest.skip.Exception, match="wrote 4080 tokens, or counted"):
        judge(Engine(fast=10_000))


def test_an_engine_that_does_not_count_is_not_judged() -> None:
    with pytest.raises(pytest.skip.Exception, match="does not say"):
        judge(Engine(counts=False))
