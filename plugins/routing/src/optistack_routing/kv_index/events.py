"""KV events as the engines publish them, decoded into one form.

A message is a MessagePack array ``[time, events, rank]``. vLLM and SGLang 0.5.21 write an event as a map with its
class's name under ``type``; SGLang 0.5.17 writes the same fields as an array that begins with the name.
Read in ``vllm/distributed/kv_events.py`` (0.26.0 to 0.33.0) and ``sglang/srt/disaggregation/kv_events.py`` (0.5.17 to
0.5.23).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

BlockHash = int | bytes
"""An engine's own name of a block: opaque to us, and unique in one replica only."""

SHARED_MEDIA = frozenset({"STORAGE", "FS", "OBJ", "EXTERNAL"})
"""Tiers that every replica reads: a block there makes no replica the better one."""

_DECODER = msgspec.msgpack.Decoder()
_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
_REMOVED = ("block_hashes", "medium")


@dataclass(frozen=True, slots=True)
class Stored:
    """``hashes[i]`` now holds tokens ``i * page_tokens`` and on of ``token_ids``, behind block ``parent``.

    ``parent``  None at the start of a prompt
    ``plain``   False where more than the tokens decides on a hit: an adapter, a salt, an image
    """

    hashes: list[BlockHash]
    parent: BlockHash | None
    token_ids: list[int]
    page_tokens: int
    medium: str
    plain: bool


@dataclass(frozen=True, slots=True)
class Removed:
    hashes: list[BlockHash]
    medium: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """The replica's cache is empty."""


Event = Stored | Removed | Cleared


def decode(payload: bytes) -> list[Event]:
    """The events of one message, in order. Raises ValueError for a message of another kind."""
    try:
        return list(_events(_DECODER.decode(payload)))
    except (msgspec.MsgspecError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"no message of KV events: {error}") from error


def _events(batch: Any) -> Iterator[Event]:
    for raw in batch[1]:
        kind, fields = _fields(raw)
        if kind == "AllBlocksCleared":
            yield Cleared()
        # Further cache groups of a hybrid model (sliding windows, state) repeat the tokens of the first.
        elif kind == "BlockRemoved" and not fields.get("group_idx"):
            yield Removed(fields["block_hashes"], _medium(fields))
        elif kind == "BlockStored" and not fields.get("group_idx"):
            yield _stored(fields)


def _fields(raw: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(raw, dict):
        return raw["type"], raw
    names = _STORED if raw[0] == "BlockStored" else _REMOVED
    return raw[0], dict(zip(names, raw[1:], strict=False))


def _stored(fields: dict[str, Any]) -> Stored:
    tokens = fields["token_ids"]
    if tokens and isinstance(tokens[0], list):  # SGLang under EAGLE: pairs of a token and the one after it
        tokens = [pair[0] for pair in tokens]
    extra = any(fields.get("extra_keys") or ())
    named = any(fields.get(name) is not None for name in ("lora_id", "lora_name", "cache_salt"))
    return Stored(
        hashes=fields["block_hashes"],
        parent=fields["parent_block_hash"],
        token_ids=tokens,
        page_tokens=fields["block_size"],
        medium=_medium(fields),
        plain=not (extra or named),
    )


def _medium(fields: dict[str, Any]) -> str:
    return fields.get("medium") or "GPU"
