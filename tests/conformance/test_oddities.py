"""What the API permits and some servers do must not fail: the suite judges answers, not habits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from optistack.verify.metrics import Metrics
from optistack_conformance.client import CHAT
from optistack_conformance.engine import read_engine
from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.proxy import FaultyProxy
from optistack_conformance.faults.server import FaultyServer
from optistack_conformance.faults.tamper import Tamper
from optistack_conformance.outcomes import Outcome
from optistack_conformance.runner import run_suite
from optistack_conformance.selection import Selection
from optistack_conformance.tiers.contract import test_structure

Event = dict[str, Any]


class Healthy(Tamper):
    """Changes how things are said, and nothing of what is said."""

    def __init__(self) -> None:
        super().__init__(Fault.NONE)


class EmptyDeltas(Healthy):
    """An empty delta first, one with null content now and then, and a usage event with an empty list of choices."""

    def events(self, path: str, body: Event, events: Iterator[Event]) -> Iterator[Event]:
        yield {"choices": []}
        for event in events:
            if path == CHAT:
                yield {"choices": [{"index": 0, "delta": {}, "finish_reason": None}]}
                yield {"choices": [{"index": 0, "delta": {"content": None}, "finish_reason": None}]}
            yield event


class RoleEverywhere(Healthy):
    """The role in each chunk, the usage so far in each one too."""

    def events(self, path: str, body: Event, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            for choice in event["choices"]:
                if path == CHAT:
                    choice["delta"]["role"] = "assistant"
            yield {"usage": None, **event}


class WithoutLogprobs(Healthy):
    """Log probabilities are asked for and not given."""

    def answer(self, path: str, body: Event, answer: Event) -> Event:
        for choice in answer.get("choices", []):
            choice["logprobs"] = None
        return answer


class Reasoning(Healthy):
    """The first half of a chat's text is reasoning, kept apart from the answer; the content may be null."""

    def answer(self, path: str, body: Event, answer: Event) -> Event:
        for choice in answer.get("choices", []):
            message = choice.get("message") or {}
            if message.get("content") and not body.get("response_format"):
                message["reasoning_content"], message["content"] = message["content"], None
        return answer

    def events(self, path: str, body: Event, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            for choice in event["choices"]:
                delta = choice.get("delta") or {}
                if "content" in delta:
                    delta["reasoning_content"] = delta.pop("content")
            yield event


class BigChunks(Healthy):
    """Several tokens in one event."""

    def events(self, path: str, body: Event, events: Iterator[Event]) -> Iterator[Event]:
        held: Event | None = None
        for event in events:
            choice = (event["choices"] or [{}])[0]
            if held is None and path != CHAT and choice.get("text") and not choice.get("finish_reason"):
                held = event
                continue
            if held is not None and "text" in choice:
                choice["text"] = held["choices"][0]["text"] + choice["text"]
                held = None
            yield event


class WeakModel(Healthy):
    """Says one of two phrases to whoever asks for a copy, and rounding decides which."""

    PHRASES = ("The original line is:", "The line was:")

    def __init__(self) -> None:
        super().__init__()
        self.turns = itertools.count()

    def answer(self, path: str, body: Event, answer: Event) -> Event:
        for choice in answer["choices"]:
            text = self.PHRASES[next(self.turns) % 2]
            choice.update({"message": {"role": "assistant", "content": text}} if path == CHAT else {"text": text})
        return answer

    def events(self, path: str, body: Event, events: Iterator[Event]) -> Iterator[Event]:
        text = self.PHRASES[next(self.turns) % 2]
        yield {"choices": [{"index": 0, "delta": {"content": text}} if path == CHAT else {"index": 0, "text": text}]}
        yield from (event for event in events if not event["choices"])


@pytest.mark.parametrize("oddity", [EmptyDeltas, RoleEverywhere, WithoutLogprobs, Reasoning, BigChunks])
def test_a_legal_oddity_does_not_fail(oddity: type[Healthy]) -> None:
    with FaultyServer(seed=1) as server, FaultyProxy(server.url, tamper=oddity()) as proxy:
        report = run_suite(Selection(endpoint=proxy.url, tiers=(0,)))
    assert [(one.id, one.why) for one in report.results if one.outcome is Outcome.FAIL] == []
    assert report.exit_code == 0


def test_an_answer_that_says_nothing_of_any_line_is_not_another_requests() -> None:
    with FaultyServer(seed=1) as server, FaultyProxy(server.url, tamper=WeakModel()) as proxy:
        report = run_suite(Selection(endpoint=proxy.url, cases=("contract/requests-do-not-leak-*",)))
    (found,) = report.results
    assert found.outcome is Outcome.INCONCLUSIVE, "not a failure, and no pass either: such answers show nothing"
    assert "0 of 32 answers say whose they are" in found.why


@pytest.mark.parametrize("heeded", [True, False])
def test_seeds_are_not_expected_of_an_sglang_that_does_not_look_at_them(heeded: bool) -> None:
    pages = {"/server_info": {"version": "0.5.23", "enable_deterministic_inference": heeded}}
    server = SimpleNamespace(
        url="http://engine", get_json=pages.get, metrics=lambda: Metrics(()), model=lambda: "small", listed=dict
    )
    assert read_engine(server).seeds is heeded  # type: ignore[arg-type]  # what it asks of an Endpoint


def test_a_server_with_nothing_but_the_openai_routes_is_judged_by_what_it_has() -> None:
    hidden = ("/metrics", "/version", "/tokenize", "/server_info", "/get_server_info")
    with FaultyServer(seed=1) as server, FaultyProxy(server.url, hidden=hidden) as proxy:
        report = run_suite(Selection(endpoint=proxy.url))
    assert [(one.id, one.why) for one in report.results if one.outcome is Outcome.FAIL] == []
    assert report.verdict_of(0) is Outcome.PASS
    assert report.verdict_of(1) is Outcome.SKIPPED, "nobody can score tokens there, and it is said"


def test_a_server_that_makes_no_tool_call_is_asked_for_its_parser() -> None:
    no_call: dict[str, Any] = {"content": "It is warm in Paris.", "tool_calls": None}
    with pytest.raises(AssertionError, match="serving.tool_call_parser"):
        test_structure.test_named_tool_call(no_call)
