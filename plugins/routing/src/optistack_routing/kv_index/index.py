"""Which replicas hold which blocks of tokens.

A block is known by a key of our own: the hash of its tokens and of the key before it, so that it says which prompt the
block continues, and neither engine's hash matters. Keys are Python's own hashes of bytes, which are seeded anew in
each process: nobody outside can aim at a collision.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from optistack_routing.kv_index.events import SHARED_MEDIA, BlockHash, Cleared, Event, Removed, Stored

ROOT = 0
"""The key before a prompt's first block."""

MAX_BLOCKS = 2_000_000
"""Of one replica: more than its pool has pages, unless they are of a token or two. An engine reports what it evicts, so
that a larger count means lost events."""


def chain(tokens: array[int], page_tokens: int, keys: Sequence[int] = ()) -> array[int]:
    """The keys of the whole pages of ``tokens``; those of the first pages may be given as ``keys``."""
    found = array("q", keys)
    key = found[-1] if found else ROOT
    text, step = tokens.tobytes(), tokens.itemsize * page_tokens
    for start in range(len(found) * step, len(text) - step + 1, step):
        key = hash((key, text[start : start + step]))
        found.append(key)
    return found


@dataclass(slots=True)
class _Block:
    key: int
    media: set[str]


@dataclass(slots=True)
class _Held:
    """One replica's blocks by the engine's hashes, oldest first, and its bit in the table of holders.

    ``again``  how many more hashes than one stand for a key, where any do
    """

    bit: int
    blocks: dict[BlockHash, _Block] = field(default_factory=dict)
    again: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """What an index has seen and could not use.

    ``unplaced``      blocks whose parent is not known: an event was lost, or the parent is not plain
    ``other_pages``   blocks of another size than the plan's pages
    ``dropped``       the oldest blocks of a replica that had more than the bound
    """

    stored: int = 0
    removed: int = 0
    unplaced: int = 0
    other_pages: int = 0
    dropped: int = 0


class BlockIndex:
    """Blocks of ``page_tokens`` tokens, at most ``max_blocks`` for each replica. Safe to use from several threads."""

    def __init__(self, page_tokens: int, *, max_blocks: int = MAX_BLOCKS) -> None:
        if page_tokens < 1 or max_blocks < 1:
            raise ValueError("pages and the bound have at least one token and one block")
        self.page_tokens, self.max_blocks = page_tokens, max_blocks
        self.counts = Counts()
        self._lock = threading.Lock()
        self._replicas: dict[str, _Held] = {}
        self._holders: dict[int, int] = {}
        """Key to the bits of the replicas that hold it."""

    def join(self, replica: str) -> None:
        """Take ``replica`` in, with nothing held."""
        with self._lock:
            used = {held.bit for held in self._replicas.values()}
            free = next(1 << n for n in range(len(used) + 1) if 1 << n not in used)
            self._replicas.setdefault(replica, _Held(free))

    def leave(self, replica: str) -> None:
        with self._lock:
            if replica in self._replicas:
                self._clear(self._replicas.pop(replica))

    def clear(self, replica: str) -> None:
        """Forget what ``replica`` holds: it has restarted, or events are lost."""
        with self._lock:
            if replica in self._replicas:
                self._clear(self._replicas[replica])

    def apply(self, replica: str, events: Iterable[Event]) -> None:
        """Take in ``events`` of ``replica``, in their order. Events of a replica that has left are ignored."""
        with self._lock:
            held = self._replicas.get(replica)
            if held is None:
                return
            for event in events:
                if isinstance(event, Stored):
                    self._store(held, event)
                elif isinstance(event, Removed):
                    self._remove(held, event)
                elif isinstance(event, Cleared):
                    self._clear(held)

    def blocks(self) -> dict[str, int]:
        """How many blocks each replica holds."""
        with self._lock:
            return {name: len(held.blocks) for name, held in self._replicas.items()}

    def cached_tokens(self, token_ids: Sequence[int]) -> dict[str, int]:
        """For each replica, how many tokens of the prompt ``token_ids`` its cache holds.

        Whole pages from the prompt's start, without the one that has the last token: engines compute that for its
        logits.
        """
        return self.cached_of(chain(array("I", token_ids), self.page_tokens), len(token_ids))

    def cached_of(self, keys: Sequence[int], prompt_tokens: int) -> dict[str, int]:
        """As :meth:`cached_tokens` of a prompt of ``prompt_tokens`` tokens whose pages have the ``keys``."""
        usable = min(len(keys), max(0, prompt_tokens - 1) // self.page_tokens)
        with self._lock:
            names = {held.bit: name for name, held in self._replicas.items()}
            here = sum(names)
            pages = dict.fromkeys(names.values(), usable)
            for number in range(usable):
                gone = here & ~self._holders.get(keys[number], 0)
                if gone:
                    here ^= gone
                    while gone:
                        bit = gone & -gone
                        pages[names[bit]] = number
                        gone ^= bit
                    if not here:
                        break
            return {name: count * self.page_tokens for name, count in pages.items()}

    def _store(self, held: _Held, event: Stored) -> None:
        if event.medium in SHARED_MEDIA:
            return
        if event.page_tokens != self.page_tokens:
            self.counts.other_pages += len(event.hashes)
            return
        parent = held.blocks.get(event.parent) if event.parent is not None else None
        if not event.plain or (parent is None and event.parent is not None):
            self.counts.unplaced += len(event.hashes)
            return
        first = array("q", [parent.key if parent else ROOT])
        # As if the parent were page 0 of these tokens.
        padded = array("I", [0] * self.page_tokens + event.token_ids)
        for name, key in zip(event.hashes, islice(chain(padded, self.page_tokens, first), 1, None), strict=False):
            known = held.blocks.get(name)
            if known is None:
                held.blocks[name] = _Block(key, {event.medium})
                holders = self._holders.get(key, 0)
                if holders & held.bit:
                    held.again[key] = held.again.get(key, 0) + 1
                self._holders[key] = holders | held.bit
                self.counts.stored += 1
            else:
                known.media.add(event.medium)
        if len(held.blocks) > self.max_blocks:
            self._drop_oldest(held)

    def _remove(self, held: _Held, event: Removed) -> None:
        for name in event.hashes:
            block = held.blocks.get(name)
            if block is None or event.medium not in block.media:
                continue
            block.media.discard(event.medium)
            if not block.media:
                self._forget(held, name)
                self.counts.removed += 1

    def _drop_oldest(self, held: _Held) -> None:
        """Make room for a tenth of the bound, so that this is rare: a dict is slow to give its first items away."""
        surplus = len(held.blocks) - self.max_blocks + self.max_blocks // 10
        for name in list(islice(held.blocks, surplus)):
            self._forget(held, name)
            self.counts.dropped += 1

    def _clear(self, held: _Held) -> None:
        for name in list(held.blocks):
            self._forget(held, name)

    def _forget(self, held: _Held, name: BlockHash) -> None:
        key = held.blocks.pop(name).key
        more = held.again.pop(key, 0)
        if more:
            if more > 1:
                held.again[key] = more - 1
            return
        rest = self._holders.get(key, 0) & ~held.bit
        if rest:
            self._holders[key] = rest
        else:
            self._holders.pop(key, None)
