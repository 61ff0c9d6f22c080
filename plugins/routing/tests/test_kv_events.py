"""What the engines publish, in each of their dialects."""

from __future__ import annotations

import msgspec
import pytest
from plugins.routing.tests import kv_publisher as wire

from optistack_routing.kv_index.events import Cleared, Removed, Stored, decode


@pytest.mark.parametrize("dialect", ["vllm", "sglang-0.5.17"])
def test_maps_and_arrays_are_the_same_events(dialect: str) -> None:
    payload = wire.batch(
        wire.stored([7, 8], [1, 2, 3, 4, 5, 6, 7, 8], parent=6, dialect=dialect),
        wire.removed([7], dialect=dialect),
        wire.cleared(dialect=dialect),
    )
    assert decode(payload) == [
        Stored([7, 8], 6, [1, 2, 3, 4, 5, 6, 7, 8], 4, "GPU", True),
        Removed([7], "GPU"),
        Cleared(),
    ]


def test_hashes_may_be_bytes_and_the_medium_may_be_missing() -> None:
    (event,) = decode(wire.batch(wire.stored([b"h"], [1, 2, 3, 4], medium=None)))
    assert (event.hashes, event.medium) == ([b"h"], "GPU")


@pytest.mark.parametrize(
    "more", [{"lora_name": "a"}, {"lora_id": 1}, {"cache_salt": "s"}, {"extra_keys": [["image", 0]]}]
)
def test_blocks_that_depend_on_more_than_their_tokens_are_told_apart(more: dict[str, object]) -> None:
    (event,) = decode(wire.batch(wire.stored([1], [1, 2, 3, 4], **more)))
    assert not event.plain


def test_extra_keys_of_nothing_are_plain() -> None:
    (event,) = decode(wire.batch(wire.stored([1], [1, 2, 3, 4], extra_keys=[None])))
    assert event.plain


def test_further_groups_of_a_hybrid_model_are_left_out() -> None:
    assert decode(wire.batch(wire.stored([1], [1, 2, 3, 4], group_idx=1), wire.removed([1], group_idx=1))) == []
    assert len(decode(wire.batch(wire.stored([1], [1, 2, 3, 4], group_idx=0)))) == 1


def test_pairs_of_tokens_are_read_by_their_first() -> None:
    (event,) = decode(wire.batch(wire.stored([1], [[1, 2], [2, 3], [3, 4], [4, 5]])))
    assert event.token_ids == [1, 2, 3, 4]


def test_events_that_are_not_known_are_passed_over() -> None:
    assert decode(wire.batch({"type": "BlockMoved", "block_hashes": [1]}, wire.cleared())) == [Cleared()]


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", msgspec.msgpack.encode(5), msgspec.msgpack.encode([1.0, [{"no": "type"}]]), wire.batch([])],
)
def test_anything_else_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="no message of KV events"):
        decode(payload)
