"""Many blocks of one sequence in one pass: where they start, what they may look at, what they should say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from optistack_dflash.drafter.network import Drafter
from optistack_dflash.drafter.target import Target


@dataclass(frozen=True)
class Batch:
    """``tokens`` [B, S] padded on the right; answers are tokens ``prompts[b]`` to ``lengths[b]`` - 1."""

    tokens: Tensor
    lengths: Tensor
    prompts: Tensor


@dataclass(frozen=True)
class Blocks:
    """Blocks of size K at A anchors a sequence.

    ``anchors`` [B, A] positions; ``labels`` [B, A, K-1] the tokens that follow each anchor; ``known`` [B, A, K-1] True
    where there is such a token (the anchor is one and the sequence goes on that far).
    """

    anchors: Tensor
    labels: Tensor
    known: Tensor


def sample_anchors(batch: Batch, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """``count`` different anchors of each sequence, any token of the answer that has a successor; [B, count] positions
    and whether each is one (a short answer has fewer)."""
    width = batch.tokens.shape[1]
    position = torch.arange(width, device=batch.tokens.device)
    allowed = (position >= batch.prompts[:, None]) & (position < batch.lengths[:, None] - 1)
    score = torch.rand(batch.tokens.shape, generator=generator, device=batch.tokens.device)
    best = score.masked_fill(~allowed, -1.0).topk(min(count, width), dim=1)
    return best.indices, best.values >= 0


def all_anchors(batch: Batch) -> tuple[Tensor, Tensor]:
    """Every token of every answer that has a successor, in order, as :func:`sample_anchors` gives them."""
    count = max(1, int((batch.lengths - 1 - batch.prompts).max()))
    anchors = batch.prompts[:, None] + torch.arange(count, device=batch.tokens.device)
    valid = anchors < batch.lengths[:, None] - 1
    return anchors.clamp(max=batch.tokens.shape[1] - 1), valid


def blocks_at(batch: Batch, anchors: Tensor, valid: Tensor, block_size: int) -> Blocks:
    offsets = torch.arange(1, block_size, device=anchors.device)
    positions = anchors[..., None] + offsets
    known = valid[..., None] & (positions < batch.lengths[:, None, None])
    inside = positions.clamp(max=batch.tokens.shape[1] - 1)
    labels = batch.tokens.gather(1, inside.flatten(1)).view_as(inside)
    return Blocks(anchors, labels, known)


def attention_mask(anchors: Tensor, context: int, block_size: int) -> Tensor:
    """[B, 1, A x K, context + A x K]: a query sees the context before its anchor, and all of its own block."""
    queries = anchors.repeat_interleave(block_size, dim=1)
    before = torch.arange(context, device=anchors.device) < queries[..., None]
    block = torch.arange(queries.shape[1], device=anchors.device) // block_size
    own = (block[:, None] == block[None, :]).expand(anchors.shape[0], -1, -1)
    return torch.cat((before, own), dim=-1)[:, None]


def draft_hidden(drafter: Drafter, target: Target, tokens: Tensor, states: Tensor, anchors: Tensor) -> Tensor:
    """The drafter's hidden states for the mask tokens of each block [B, A, K-1, H]; the head makes logits of them."""
    shape = drafter.shape
    size, (rows, count), width = shape.block_size, anchors.shape, tokens.shape[1]
    inputs = torch.full((rows, count, size), shape.mask_token_id, dtype=tokens.dtype, device=anchors.device)
    inputs[..., 0] = tokens.gather(1, anchors)
    positions = anchors[..., None] + torch.arange(size, device=anchors.device)
    hidden = drafter(
        states,
        target.embed(inputs.flatten(1)),
        torch.arange(width, device=anchors.device).expand(rows, -1),
        positions.flatten(1),
        attention_mask(anchors, width, size),
    )
    return cast(Tensor, hidden.view(rows, count, size, -1)[:, :, 1:])
