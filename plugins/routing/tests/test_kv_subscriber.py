"""Following streams over real ZeroMQ sockets: gaps, restarts, and engines that cannot replay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from plugins.routing.tests import kv_publisher as wire

from optistack_routing.kv_index.index import BlockIndex
from optistack_routing.kv_index.subscriber import Subscriber

PROMPT = list(range(13))


@pytest.fixture
def index() -> BlockIndex:
    return BlockIndex(4)


@pytest.fixture
def subscriber(index: BlockIndex) -> Iterator[Subscriber]:
    with Subscriber(index) as running:
        yield running


def page(number: int, *, dialect: str = "vllm") -> object:
    """Page ``number`` of the prompt."""
    tokens = PROMPT[4 * number : 4 * number + 4]
    return wire.stored([100 + number], tokens, parent=99 + number if number else None, dialect=dialect)


def holds(index: BlockIndex, tokens: int, replica: str = "a") -> None:
    wire.until(lambda: index.cached_tokens(PROMPT).get(replica) == tokens)


@pytest.mark.parametrize("dialect", ["vllm", "sglang-0.5.17"])
def test_it_follows_an_engine(tmp_path: Path, index: BlockIndex, subscriber: Subscriber, dialect: str) -> None:
    with wire.Publisher(tmp_path, topic=dialect == "vllm") as engine:
        engine.lose(page(0, dialect=dialect))  # before anybody listened
        subscriber.follow("a", engine.events, engine.replay)
        holds(index, 4)
        engine.wait_for_subscriber()
        engine.publish(page(1, dialect=dialect), page(2, dialect=dialect))
        holds(index, 12)
        engine.publish(wire.removed([102], dialect=dialect))
        holds(index, 8)
        engine.publish(wire.cleared(dialect=dialect))
        holds(index, 0)


def test_lost_messages_are_asked_for(tmp_path: Path, index: BlockIndex, subscriber: Subscriber) -> None:
    with wire.Publisher(tmp_path) as engine:
        subscriber.follow("a", engine.events, engine.replay)
        engine.wait_for_subscriber()
        engine.publish(page(0))
        holds(index, 4)
        engine.lose(page(1))
        engine.publish(page(2))
        holds(index, 12)
        assert subscriber.counts.gaps == 1


def test_messages_that_nobody_keeps_any_more_cost_the_blocks(
    tmp_path: Path, index: BlockIndex, subscriber: Subscriber
) -> None:
    with wire.Publisher(tmp_path, kept=1) as engine:
        subscriber.follow("a", engine.events, engine.replay)
        engine.wait_for_subscriber()
        engine.publish(page(0), page(1))
        holds(index, 8)
        engine.lose(wire.removed([101]))
        engine.publish(wire.stored([7], PROMPT[:4]))
        holds(index, 4)
        assert index.blocks() == {"a": 1}


@pytest.mark.parametrize("address", ["silent", "none"])
def test_an_engine_that_does_not_replay(
    tmp_path: Path, index: BlockIndex, subscriber: Subscriber, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optistack_routing.kv_index.subscriber.REPLAY_TIMEOUT_S", 0.3)
    with wire.Publisher(tmp_path, replays=False) as engine:
        subscriber.follow("a", engine.events, engine.replay if address == "silent" else None)
        engine.wait_for_subscriber()
        engine.publish(page(0), page(1))
        holds(index, 8)
        engine.lose(wire.removed([101]))
        engine.publish(page(0))
        holds(index, 4)
        engine.publish(page(1))
        holds(index, 8)


def test_a_restart_forgets_what_was_held(tmp_path: Path, index: BlockIndex, subscriber: Subscriber) -> None:
    with wire.Publisher(tmp_path) as engine:
        subscriber.follow("a", engine.events, engine.replay)
        engine.wait_for_subscriber()
        engine.publish(page(0), page(1))
        holds(index, 8)
    holds(index, 0)
    with wire.Publisher(tmp_path) as engine:
        engine.lose(page(0))
        engine.wait_for_subscriber()
        holds(index, 4)
        assert subscriber.counts.restarts == 1


def test_what_cannot_be_read_costs_the_blocks_and_not_the_stream(
    tmp_path: Path, index: BlockIndex, subscriber: Subscriber
) -> None:
    with wire.Publisher(tmp_path) as engine:
        subscriber.follow("a", engine.events, engine.replay)
        engine.wait_for_subscriber()
        engine.publish(page(0))
        holds(index, 4)
        engine.publish(wire.stored([1], [-1, "x"], page=4))
        holds(index, 0)
        engine.publish(page(0))
        holds(index, 4)
        assert subscriber.counts.malformed == 1


def test_replicas_are_followed_side_by_side_and_dropped(
    tmp_path: Path, index: BlockIndex, subscriber: Subscriber
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    with wire.Publisher(tmp_path / "a") as first, wire.Publisher(tmp_path / "b") as second:
        subscriber.follow("a", first.events, first.replay)
        subscriber.follow("b", second.events, second.replay)
        for engine, pages in ((first, 1), (second, 3)):
            engine.wait_for_subscriber()
            engine.publish(*map(page, range(pages)))
        wire.until(lambda: index.cached_tokens(PROMPT) == {"a": 4, "b": 12})
        subscriber.drop("a")
        wire.until(lambda: index.cached_tokens(PROMPT) == {"b": 12})
