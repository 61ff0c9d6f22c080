"""The case of the shapes passes only where the engine was seen to decode so many requests at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from optistack.verify.metrics import Metrics, parse_metrics
from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer
from optistack_conformance.engine import EngineInfo
from optistack_conformance.sequences import Run
from optistack_quant_nvfp4.conformance import BATCHES, PROMPTS, shapes_agree


@dataclass
class Engine:
    """Runs ``at_once`` of the requests that it is sent at a time, at most; None: it does not say."""

    at_once: int | None = 8
    running: int = 0
    read: Event = field(default_factory=Event)

    def metrics(self) -> Metrics:
        self.read.set()
        return Metrics(()) if self.at_once is None else parse_metrics(f"vllm:num_requests_running {self.running}\n")


@dataclass
class FakeBench:
    client: Engine
    wrong: tuple[int, ...] = ()
    tokens: int = 24
    engine: EngineInfo = field(default_factory=lambda: EngineInfo("vllm", "0", "m", max_tokens=100))

    def prompts(self, number: int, name: str) -> list[tuple[int, ...]]:
        return [(0,)] * number

    def run(self, prompts: list[tuple[int, ...]], concurrency: int, alone: int) -> Run:
        assert 1 + self.tokens < 100
        self.client.running = min(concurrency, self.client.at_once or concurrency)
        for _ in range(2):  # the second reading began after the first, which may have begun before the requests did
            self.client.read.clear()
            assert self.client.read.wait(10)
        return Run(cast(Any, [SimpleNamespace(kl=0.5 if concurrency in self.wrong else 1e-5)] * PROMPTS))

    def margin(self, *runs: Run) -> Any:
        return SimpleNamespace(passed=True, describe=lambda: "every token")


def judged(at_once: int | None, *wrong: int) -> Answer:
    return shapes_agree(cast(Any, FakeBench(Engine(at_once), wrong)))


def test_requests_that_ran_together_prove_the_shapes() -> None:
    assert judged(8).status is Status.PASS
    assert judged(5).status is Status.PASS


@pytest.mark.parametrize(
    ("at_once", "why"),
    [
        (1, "sent 2 at a time, 1 requests were seen to run at once at most; sent 8"),
        (2, "sent 8 at a time, 2 requests"),
        (None, "the engine does not say how many requests"),
    ],
)
def test_requests_that_nobody_saw_together_prove_none(at_once: int | None, why: str) -> None:
    answer = judged(at_once)
    assert (answer.status, answer.why.startswith(why)) == (Status.UNPROVEN, True), answer


@pytest.mark.parametrize("at_once", [1, 8, None])
@pytest.mark.parametrize("size", BATCHES)
def test_a_wrong_shape_fails_seen_or_not(at_once: int | None, size: int) -> None:
    answer = judged(at_once, size)
    assert (answer.status, f"decoding {size} at a time" in answer.why) == (Status.FAIL, True), answer
