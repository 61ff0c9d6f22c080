"""Recorded sequences for the device, cut into batches of similar length in an order that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from optistack.errors import InputError
from optistack_dflash.drafter.blocks import Batch
from optistack_dflash.drafter.shards import Recorded

_POOL_BATCHES = 64


class Corpus:
    """Sequences cut to ``max_tokens``; those whose answer has fewer than two tokens then are left out."""

    def __init__(self, sequences: Sequence[Recorded], device: torch.device, *, max_tokens: int) -> None:
        kept = [one for one in sequences if min(len(one.ids), max_tokens) - one.prompt_tokens >= 2]
        if not kept:
            raise InputError(
                f"None of {len(sequences)} sequences has an answer of two tokens within the first {max_tokens}.",
                fix="Collect longer answers, or train with a larger --max-tokens.",
            )
        ids = [one.ids[:max_tokens] for one in kept]
        self.lengths = [len(one) for one in ids]
        self._prompts = [one.prompt_tokens for one in kept]
        self._starts = [0, *accumulate(self.lengths)]
        self._tokens = torch.tensor([token for one in ids for token in one], dtype=torch.int64)
        self.device = device
        self.answer_tokens = sum(self.lengths) - sum(self._prompts)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Sequence[int]) -> Batch:
        """The sequences ``rows`` on the CPU, where what is worked out of them does not wait for the device."""
        lengths = torch.tensor([self.lengths[row] for row in rows])
        starts = torch.tensor([self._starts[row] for row in rows])
        prompts = torch.tensor([self._prompts[row] for row in rows])
        position = torch.arange(max(self.lengths[row] for row in rows))
        index = starts[:, None] + torch.minimum(position, lengths[:, None] - 1)
        return Batch(self._tokens[index], lengths, prompts)

    def epoch(self, seed: int, batch_tokens: int) -> Iterator[list[int]]:
        """The rows of each batch of one pass; a batch holds ``batch_tokens`` tokens, padding counted, or one row."""
        dice = random.Random(seed)
        order = list(range(len(self)))
        dice.shuffle(order)
        pool_rows = max(1, _POOL_BATCHES * batch_tokens // max(self.lengths))
        for begin in range(0, len(order), pool_rows):
            pool = sorted(order[begin : begin + pool_rows], key=self.lengths.__getitem__)
            batches = list(self._cut(pool, batch_tokens))
            dice.shuffle(batches)
            yield from batches

    def in_order(self, batch_tokens: int) -> Iterator[list[int]]:
        """Every row once, shortest first."""
        yield from self._cut(sorted(range(len(self)), key=self.lengths.__getitem__), batch_tokens)

    def _cut(self, rows: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
        batch: list[int] = []
        for row in rows:
            if batch and (len(batch) + 1) * self.lengths[row] > batch_tokens:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch
