"""Servers on which a case could see nothing, or saw what is no fault: it says so, and neither passes nor fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest

from optistack.errors import CheckFailedError
from optistack_conformance.client import CHAT, COMPLETIONS, Client
from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.proxy import FaultyProxy
from optistack_conformance.faults.server import FaultyServer
from optistack_conformance.faults.tamper import Tamper
from optistack_conformance.outcomes import Outcome
from optistack_conformance.reference import measure_reference, save_reference
from optistack_conformance.runner import run_suite
from optistack_conformance.selection import Selection
from optistack_conformance.statistics.paired import Paired, judge_paired
from optistack_conformance.statistics.sampling import judge_sampling
from optistack_conformance.tiers.contract import test_structure, test_text
from optistack_conformance.tiers.lossless import test_tokens

Event = dict[str, Any]


class Says(Tamper):
    """Every choice has ``finish_reason``."""

    def __init__(self, finish_reason: str) -> None:
        super().__init__(Fault.NONE)
        self.finish_reason = finish_reason

    def answer(self, path: str, body: Event, answer: Event) -> Event:
        for choice in answer["choices"]:
            choice["finish_reason"] = self.finish_reason
        return answer


class OneEvent(Tamper):
    """A stream's text comes in one event, at the end."""

    def events(self, path: str, body: Event, events: Iterator[Event]) -> Iterator[Event]:
        text = ""
        for event in events:
            for choice in event["choices"]:
                said = choice["delta"] if path == CHAT else choice
                key = "content" if path == CHAT else "text"
                text += said.get(key) or ""
                said[key] = text if choice["finish_reason"] else ""
            yield event


def outcomes(url: str, *cases: str, **settings: Any) -> list[tuple[Outcome, str]]:
    report = run_suite(Selection(endpoint=url, cases=cases, **settings))
    return [(one.outcome, one.why) for one in report.results]


@pytest.mark.parametrize("limit", [1, 7])
def test_a_text_that_was_cut_did_not_end_by_itself(limit: int) -> None:
    with FaultyServer(seed=1) as server, FaultyProxy(server.url, tamper=Says("stop")) as proxy:
        ((outcome, why),) = outcomes(proxy.url, f"contract/max-tokens-is-kept[{limit}]")
    assert outcome is Outcome.FAIL
    assert "the text goes on" in why


def test_a_text_that_ended_by_itself_shows_no_count() -> None:
    with FaultyServer(seed=1) as server, FaultyProxy(server.url, tamper=Says("stop")) as proxy:
        ((outcome, why),) = outcomes(proxy.url, "contract/usage-adds-up")
    assert outcome is Outcome.INCONCLUSIVE
    assert "ended by itself" in why


def test_a_stream_of_one_event_shows_nothing_of_streams() -> None:
    with FaultyServer(seed=1) as server, FaultyProxy(server.url, tamper=OneEvent(Fault.NONE)) as proxy:
        found = outcomes(proxy.url, "contract/*-streams-the-same-text*")
    assert {outcome for outcome, _ in found} == {Outcome.INCONCLUSIVE}
    assert {why for _, why in found} == {"the whole text came in one event, as without a stream"}


def test_a_route_that_is_not_there_refuses_no_bad_request() -> None:
    with FaultyServer(seed=1) as server, FaultyProxy(server.url, hidden=(COMPLETIONS, CHAT)) as proxy:
        found = outcomes(proxy.url, "contract/*-is-refused*")
    assert {outcome for outcome, _ in found} == {Outcome.SKIPPED}


def test_a_baseline_that_solves_nothing_has_nothing_to_lose(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    with FaultyServer(seed=1, skill=0.0) as server:
        with Client(server.url) as client:
            save_reference(measure_reference(client, Selection(endpoint=server.url)), path)
        ((outcome, why),) = outcomes(server.url, "lossless/tasks-*", baseline_file=str(path))
    assert outcome is Outcome.INCONCLUSIVE
    assert "take a stronger model" in why


@pytest.mark.parametrize(
    ("paired", "outcome"),
    [
        (Paired(n=80, both=9, lost=0, gained=5), Outcome.INCONCLUSIVE),
        (Paired(n=80, both=10, lost=0, gained=5), Outcome.PASS),
        (Paired(n=80, both=0, lost=10, gained=0), Outcome.FAIL),
        (Paired(n=0, both=0, lost=0, gained=0), Outcome.INCONCLUSIVE),
    ],
)
def test_losses_are_judged_where_they_could_show(paired: Paired, outcome: Outcome) -> None:
    assert judge_paired(paired) is outcome


def test_samples_of_a_model_that_is_sure_of_each_token_show_nothing() -> None:
    top = np.zeros((1_000, 20))
    top[:, 0] = 1.0
    assert judge_sampling(np.ones(1_000), top).outcome is Outcome.INCONCLUSIVE
    assert judge_sampling(np.ones(0), np.zeros((0, 20))).outcome is Outcome.INCONCLUSIVE
    top[:, :2] = 0.5
    assert judge_sampling(np.tile([1, 2], 500), top).outcome is Outcome.PASS
    assert judge_sampling(np.ones(1_000), top).outcome is Outcome.FAIL


def test_a_text_that_is_too_short_is_not_an_equal_one() -> None:
    short = SimpleNamespace(greedy_ids=lambda prompt, number: (5, 6))
    baseline = SimpleNamespace(sequences=[SimpleNamespace(prompt_ids=(1,), output_ids=(5, 6, 7))])
    selection = Selection(endpoint="http://engine")
    with pytest.raises(pytest.fail.Exception, match="2 tokens, where 3 were asked for"):
        test_tokens.test_first_divergence_from_baseline(
            cast(Any, short), cast(Any, baseline), selection, None, cast(Any, None)
        )


def client(answer: Callable[[Event], httpx.Response]) -> Client:
    """A client of a server that gives ``answer`` to each body."""

    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        return answer(json.loads(request.content))

    return Client("http://engine", transport=httpx.MockTransport(handle))


def test_an_answer_refused_among_others_is_no_missing_feature() -> None:
    def answer(body: Event) -> httpx.Response:
        if "number 0?" not in body["messages"][0]["content"]:
            return httpx.Response(400, text="the grammar could not be compiled")
        choice = {"message": {"content": '{"days": 3}'}, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [choice], "usage": {"completion_tokens": 5}})

    with client(answer) as engine, pytest.raises(CheckFailedError, match="could not be compiled"):
        test_structure.test_schema_is_kept_every_time(engine, Selection(endpoint="http://engine"))


@pytest.mark.parametrize("sure_of", [(1,), test_text.SEEDS], ids=["once", "always"])
def test_a_model_may_say_one_thing_three_times_but_not_each_time(sure_of: tuple[int, ...]) -> None:
    def answer(body: Event) -> httpx.Response:
        same = body["seed"] in sure_of
        choices = [{"index": index, "text": "fox" if same else f"fox {index}"} for index in range(3)]
        return httpx.Response(200, json={"choices": choices, "usage": {"completion_tokens": 9}})

    with client(answer) as engine:
        if sure_of == (1,):
            test_text.test_n_gives_n_choices(engine, COMPLETIONS)
        else:
            with pytest.raises(pytest.fail.Exception, match="all the same"):
                test_text.test_n_gives_n_choices(engine, COMPLETIONS)
