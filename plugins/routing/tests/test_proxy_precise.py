"""Precise mode in the router: what is predicted reaches the policy, and what the engine says is held against it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from plugins.routing.tests.kv_publisher import Publisher, stored
from plugins.routing.tests.rig import Heard, MockReplica, answer_ok, play, post, rig
from tokenizers import Tokenizer, models, pre_tokenizers

from optistack.errors import InputError
from optistack_routing.router.config import Precise, load
from optistack_routing.router.precise import follow

PROMPT = list(range(1, 14))
BODY = json.dumps({"prompt": PROMPT}).encode()


async def answer_with_usage(
    replica: MockReplica, heard: Heard, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    body = b'{"usage": {"prompt_tokens": 13, "prompt_tokens_details": {"cached_tokens": 8}}}'
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


class Told:
    """An overlap that says what it is told to."""

    def __init__(self, answer: dict[str, int] | None, *, waits: bool = False) -> None:
        self.answer, self.waits = answer, waits
        self.bodies: list[tuple[bytes, str | None]] = []
        self.compared: list[tuple[str, int, int]] = []
        self.given_up = False
        self.followed: list[tuple[str, str, str, str | None]] = []

    async def of(self, body: bytes, session: str | None) -> dict[str, int] | None:
        self.bodies.append((body, session))
        try:
            await asyncio.sleep(60 if self.waits else 0)
        except asyncio.CancelledError:
            self.given_up = True
            raise
        return self.answer

    def served(self, replica: str, predicted_tokens: int, cached_tokens: int) -> None:
        self.compared.append((replica, predicted_tokens, cached_tokens))

    def join(self, replica: str, events: str, replay: str | None) -> None:
        self.followed.append(("join", replica, events, replay))

    def leave(self, replica: str) -> None:
        self.followed.append(("leave", replica, "", None))

    def state(self) -> dict[str, int]:
        return {}

    def close(self) -> None: ...


def test_the_replica_that_holds_the_prompt_is_chosen_and_the_prediction_compared() -> None:
    async def scenario() -> None:
        async with rig(answer_with_usage, answer_with_usage, policy="kv-aware") as r:
            for holder in (1, 0, 1):
                prompt_tokens = {r.replicas[n].url: 100_000 * (n == holder) for n in range(2)}
                overlap = r.front.settings.overlap = Told(prompt_tokens)
                body = b'{"a": "%b"}' % (b"x" * 400_000)
                before = [len(replica.heard) for replica in r.replicas]
                assert (await r.ask(body, session=f"s{holder}"))[0] == 200
                moved = [len(replica.heard) - count for replica, count in zip(r.replicas, before, strict=True)]
                assert moved[holder] == 1
                assert overlap.bodies == [(body, f"s{holder}")]
                await r.until(lambda overlap=overlap: overlap.compared)
                assert overlap.compared == [(r.replicas[holder].url, 100_000, 8)]
            r.assert_quiet()

    play(scenario())


@pytest.mark.parametrize("answer", [None, {}])
def test_a_request_without_a_prediction_is_routed_all_the_same(answer: dict[str, int] | None) -> None:
    async def scenario() -> None:
        async with rig(answer_with_usage) as r:
            overlap = r.front.settings.overlap = Told(answer)
            assert (await r.ask(BODY))[0] == 200
            r.assert_quiet()
            assert overlap.compared == []

    play(scenario())


def test_requests_without_a_body_are_not_predicted() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            overlap = r.front.settings.overlap = Told({})
            client = await r.connect()
            await client.say(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await client.answer())[0] == 200
            assert overlap.bodies == []

    play(scenario())


def test_a_client_that_leaves_before_the_prediction_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            overlap = r.front.settings.overlap = Told({}, waits=True)
            client = await r.connect()
            await client.say(post(BODY))
            await r.until(lambda: overlap.bodies)
            client.leave()
            await r.until(lambda: overlap.given_up)
            await r.until(lambda: r.recorder.in_flight == 0)
            r.assert_quiet()
            assert r.replicas[0].heard == []

    play(scenario())


def test_from_events_to_metrics(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({str(n): n for n in range(100)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    async def scenario() -> None:
        first = MockReplica(answer_with_usage)
        await first.start()
        with Publisher(tmp_path) as engine:
            engine.lose(stored([1, 2], PROMPT[:8]))
            precise = {"checkpoint": str(tmp_path), "page_tokens": 4}
            precise["events"] = {first.url: (engine.events, engine.replay)}  # type: ignore[assignment]
            async with rig(start=False, replicas=(first.url,), precise=precise) as r:
                await r.ready(1)
                assert r.front.settings.overlap is not None
                r.control.precise = state = r.front.settings.overlap.state
                await r.until(lambda: state()["blocks"] == 2)
                assert (await r.ask(BODY))[0] == 200
                await r.until(lambda: state()["agreed"] == 1)
                page = (await r.admin("GET", "/metrics"))[2].decode()
                assert 'optistack_route_predictions_total{result="agreed"} 1.0' in page
                assert "optistack_route_kv_blocks 2.0" in page
                assert json.loads((await r.admin("GET", "/state"))[2])["precise"]["predicted"] == 1
        await first.die()

    play(scenario())


@pytest.mark.parametrize(
    ("change", "message"),
    [({"workers": 2}, "precise goes with one worker"), ({"precise": {"page_tokens": 4}}, "precise.checkpoint")],
)
def test_a_configuration_that_cannot_work_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    precise = {"checkpoint": str(tmp_path), "page_tokens": 4, "events": {}}
    with pytest.raises(InputError, match=message):
        load(None, {"precise": precise, **change})


def test_the_index_follows_the_fleet(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(answer_ok, answer_ok) as r:
            first, other = (replica.url for replica in r.replicas)
            precise = Precise(checkpoint=tmp_path, page_tokens=4, events={first: ("tcp://h:1", None)})
            overlap = Told(None)
            follow(r.control.roster, overlap, precise)
            for url in (first, other):
                await r.admin("DELETE", f"/replicas?url={url}&now=1")
            assert overlap.followed == [("leave", first, "", None)]
            for url in (other, first, first):
                await r.admin("POST", "/replicas", json.dumps({"url": url}).encode())
            assert overlap.followed[1:] == [("join", first, "tcp://h:1", None)]

    play(scenario())
