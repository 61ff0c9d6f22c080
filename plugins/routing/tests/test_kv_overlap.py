"""Precise mode as the router uses it: predictions that come in time, and those that turn out wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugins.routing.tests import kv_publisher as wire
from tokenizers import Tokenizer, models, pre_tokenizers

from optistack_routing.kv_index.overlap import Overlap, PreciseOverlap

PROMPT = list(range(1, 14))
BODY = json.dumps({"prompt": PROMPT}).encode()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({str(n): n for n in range(100)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
def precise(checkpoint: Path) -> Iterator[PreciseOverlap]:
    overlap = PreciseOverlap(checkpoint, 4)
    yield overlap
    overlap.close()


def test_it_predicts_from_what_the_replicas_published(tmp_path: Path, precise: PreciseOverlap) -> None:
    router: Overlap = precise
    with wire.Publisher(tmp_path) as engine:
        engine.lose(wire.stored([1, 2], PROMPT[:8]))
        router.join("a", engine.events, engine.replay)
        wire.until(lambda: precise.index.blocks() == {"a": 2})
        assert asyncio.run(router.of(BODY, "s")) == {"a": 8}
        text = json.dumps({"prompt": " ".join(map(str, PROMPT))}).encode()
        assert asyncio.run(router.of(text, None)) == {"a": 8}
        assert asyncio.run(router.of(b"not a body", None)) is None
        assert (precise.counts.predicted, precise.counts.unread) == (2, 1)
        router.leave("a")
        wire.until(lambda: asyncio.run(router.of(BODY, None)) == {})


def test_pages_that_speculation_drops_are_not_promised(tmp_path: Path, checkpoint: Path) -> None:
    precise = PreciseOverlap(checkpoint, 4, dropped_pages=1)
    with wire.Publisher(tmp_path) as engine:
        engine.lose(wire.stored([1, 2], PROMPT[:8]))
        precise.join("a", engine.events, engine.replay)
        wire.until(lambda: precise.predict(BODY, None) == {"a": 4})
    precise.close()


def test_a_prediction_that_is_late_is_done_without(precise: PreciseOverlap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optistack_routing.kv_index.overlap.PATIENCE_S", 0.01)
    stuck = threading.Event()
    monkeypatch.setattr(precise, "_predict", lambda known, body, session: stuck.wait(10) and None)
    assert asyncio.run(precise.of(BODY, None)) is None
    assert precise.counts.late == 1
    stuck.set()


def test_what_the_engine_says_is_held_against_the_prediction(
    precise: PreciseOverlap, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for cached in (100, 104, 96, 105, 95, 0):
            precise.served("http://a", 100, cached)
    counts = precise.counts
    assert (counts.agreed, counts.under, counts.over) == (3, 1, 2)
    assert [record.message for record in caplog.records] == [
        "http://a served 105 prompt tokens from its cache, and its KV events say 100."
    ]


def test_a_replica_of_which_nothing_was_heard_is_not_in_the_prediction(tmp_path: Path, precise: PreciseOverlap) -> None:
    with wire.Publisher(tmp_path) as engine:
        engine.lose(wire.stored([1, 2], [90, 91, 92, 93, 94, 95, 96, 97]))
        precise.join("a", engine.events, engine.replay)
        precise.join("silent", "ipc://" + str(tmp_path / "nobody"), None)
        wire.until(lambda: precise.index.blocks().get("a") == 2)
        assert asyncio.run(precise.of(BODY, "s")) == {"a": 0}
