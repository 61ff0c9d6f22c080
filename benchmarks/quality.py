"""What the quality benchmarks share: held-out rows of tokens, the difference of two models on them, and intervals."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent / "small_moe"))
from text import sources

RESAMPLES = 1000
CHUNK_TOKENS = 1024
"""Positions whose distributions are held in float32 at once."""


class Difference(NamedTuple):
    """By token of a row: KL(truth || other) in nats, whether the best token is the same, and the loss of each in nats
    (one token fewer, for the last one has no next)."""

    kl: Tensor
    same: Tensor
    loss: Tensor
    truth_loss: Tensor


def difference(truth: Tensor, other: Tensor, row: Tensor) -> Difference:
    """Of the logits [tokens, words] of two models on ``row``, token ids [tokens]; on the CPU."""
    parts = []
    for start in range(0, len(row), CHUNK_TOKENS):
        part = slice(start, start + CHUNK_TOKENS)
        one, two = truth[part].float().log_softmax(-1), other[part].float().log_softmax(-1)
        following = row[start + 1 : start + 1 + CHUNK_TOKENS, None]
        parts.append(
            (
                (one.exp() * (one - two)).sum(-1),
                (one.argmax(-1) == two.argmax(-1)).float(),
                -two[: len(following)].gather(1, following).squeeze(1),
                -one[: len(following)].gather(1, following).squeeze(1),
            )
        )
    return Difference(*(torch.cat(one).cpu() for one in zip(*parts, strict=True)))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% of the bootstrapped means."""
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[RESAMPLES // 40], means[-RESAMPLES // 40]


def stream_rows(words: Any, tokens: int, length_tokens: int, *, held_out: bool) -> Tensor:
    """Up to ``tokens`` token ids of the split, one text after another, as [rows, length_tokens]."""
    ids: list[int] = []
    for text in sources(held_out=held_out):
        ids += words(text)["input_ids"]
        if len(ids) >= tokens:
            break
    count = min(len(ids), tokens) // length_tokens
    return torch.tensor(ids[: count * length_tokens]).view(count, length_tokens)


def file_rows(words: Any, rows: int, length_tokens: int) -> Tensor:
    """The head of each of up to ``rows`` held-out texts that are long enough, as [rows, length_tokens]: what a model
    reads at the end of a row belongs to what it read at the start."""

    def heads() -> Iterator[Tensor]:
        for text in sources(held_out=True):
            if len(text) > length_tokens and len(ids := words(text)["input_ids"]) >= length_tokens:
                yield torch.tensor(ids[:length_tokens])

    found = [head for head, _ in zip(heads(), range(rows), strict=False)]
    if not found:
        raise SystemExit(f"No held-out text on this machine has {length_tokens} tokens: give fewer --tokens.")
    return torch.stack(found)
