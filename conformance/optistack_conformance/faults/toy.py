"""A toy language model over bytes, whose state is a KV cache: wrong KV gives wrong logits, as in a real engine.

The logits after a prefix depend on its last two tokens and on the sum of its KV entries; the entry of a token depends
on the token, its place and the entries before. So a page that was computed behind another prefix cannot be used here
without being noticed, and neither can a page that was damaged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from optistack_conformance.faults.catalog import Fault

PAGE_TOKENS = 16
VOCABULARY = 259
START, END, EOS = 256, 257, 258
STATES = 4096
PRIME = 65_521
NOISE = 0.01
"""Standard deviation of rounding in the logits. It is the same again for the same tokens in a batch of the same size,
and another in another: what a healthy BF16 engine has."""

PERTURBATION = {Fault.FP8_NOISE: 0.12, Fault.INT4_NOISE: 0.35}

Logits = NDArray[np.float64]


@dataclass
class Cache:
    """Pages on the device, the least recently used evicted first to the host tier, where there is one.

    Keys say what a page was computed behind; values are the KV sums after each of its tokens.
    """

    device_pages: int
    host: bool
    pages: OrderedDict[object, tuple[int, ...]] = field(default_factory=OrderedDict)
    below: dict[object, tuple[int, ...]] = field(default_factory=dict)
    tier_tokens: int = 0

    def get(self, key: object, *, corrupt: bool) -> tuple[int, ...] | None:
        if key in self.pages:
            self.pages.move_to_end(key)
            return self.pages[key]
        if key not in self.below:
            return None
        self.tier_tokens += PAGE_TOKENS
        sums = self.below[key]
        if corrupt:
            sums = tuple((value + 7_919) % PRIME for value in sums)
        self.put(key, sums)
        return sums

    def put(self, key: object, sums: tuple[int, ...]) -> None:
        self.pages[key] = sums
        while len(self.pages) > self.device_pages:
            old, value = self.pages.popitem(last=False)
            if self.host:
                self.below[old] = value


class ToyModel:
    """``fault`` is what is wrong with it. ``noise_seed`` varies rounding between servers, ``batch`` is how
    many requests it works on. Not safe for threads."""

    def __init__(self, fault: Fault, *, noise_seed: int, device_pages: int, host_tier: bool) -> None:
        self.fault = fault
        self.cache = Cache(device_pages, host_tier)
        weights = np.random.default_rng(20_000)
        printable = np.full(VOCABULARY, -30.0)
        printable[[10, *range(32, 127)]] = 0.0
        self.table: Logits = weights.normal(0.0, 2.2, (STATES, VOCABULARY)) + printable
        scale = PERTURBATION.get(fault, 0.0)
        self.table += scale * np.random.default_rng(20_001).normal(0.0, 1.0, (STATES, VOCABULARY))
        self.batch = 1
        self._noise_seed = noise_seed

    def prefill(self, ids: Sequence[int], *, use_cache: bool) -> tuple[list[int], int]:
        """KV sums after each token of ``ids``, and how many of them came from the cache."""
        sums: list[int] = []
        cached = 0
        if use_cache:
            for start in range(0, len(ids) - PAGE_TOKENS, PAGE_TOKENS):
                found = self.cache.get(self._key(ids, start), corrupt=self.fault is Fault.CORRUPT_TIER)
                if found is None:
                    if self.fault is Fault.STALE_PREFIX and start == 0:
                        # Its own first page is computed; what follows is looked up without regard to it.
                        sums += self._entries(ids, sums, 0, PAGE_TOKENS)
                        continue
                    break
                sums += found
                cached = start + PAGE_TOKENS
        sums += self._entries(ids, sums, len(sums), len(ids))
        if use_cache:
            for start in range(0, len(ids) - PAGE_TOKENS + 1, PAGE_TOKENS):
                key = self._key(ids, start)
                if key not in self.cache.pages:
                    self.cache.put(key, tuple(sums[start : start + PAGE_TOKENS]))
        return sums, cached

    def extend(self, ids: Sequence[int], sums: list[int]) -> None:
        """Append the KV of the last token of ``ids``."""
        sums += self._entries(ids, sums, len(ids) - 1, len(ids))

    def logits(self, ids: Sequence[int], sums: Sequence[int]) -> Logits:
        """The next token's, rounding included."""
        row = self._row(ids[-2:], sums[-1]) + self._rounding(sums[-1], 1)
        if self.fault is Fault.BATCH_KERNEL and self.batch > 1:
            row = row + np.random.default_rng(sums[-1]).normal(0.0, 1.0, VOCABULARY)
        return row

    def logits_of_all(self, ids: Sequence[int], sums: Sequence[int], start: int) -> Logits:
        """Logits that predict the tokens of ``ids`` from ``start`` on, [tokens, vocabulary]."""
        rows = [self._row(ids[max(0, at - 2) : at], sums[at - 1]) for at in range(start, len(ids))]
        clean = np.array(rows).reshape(len(rows), VOCABULARY)
        return clean + self._rounding(sums[-1], len(rows))

    def _rounding(self, state: int, rows: int) -> Logits:
        noise = np.random.default_rng((self._noise_seed, self.batch, state, rows))
        values: Logits = noise.normal(0.0, NOISE, (rows, VOCABULARY))
        return values if rows > 1 else values[0]

    def _row(self, last: Sequence[int], total: int) -> Logits:
        state = (last[-1] * 31 + (last[0] if len(last) > 1 else 0) * 17 + total * 7) % STATES
        row: Logits = self.table[state]
        return row

    def _key(self, ids: Sequence[int], start: int) -> object:
        if self.fault is Fault.STALE_PREFIX and start > 0:
            return tuple(ids[start : start + PAGE_TOKENS])
        if self.fault is Fault.STALE_TURN and start > 0:
            return (start, *ids[:PAGE_TOKENS])
        return tuple(ids[: start + PAGE_TOKENS])

    @staticmethod
    def _entries(ids: Sequence[int], before: Sequence[int], start: int, end: int) -> list[int]:
        total = before[-1] if before else 1
        found = []
        for at in range(start, end):
            total = (total * 3 + (ids[at] + 1) * (at % 251 + 1)) % PRIME
            found.append(total)
        return found


def log_softmax(logits: Logits) -> Logits:
    """Along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normal: Logits = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normal
