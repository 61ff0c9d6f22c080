"""How far the drafter is from the target, token by token, and the gradient of that without all logits in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional


def forward_kl(draft: Tensor, target: Tensor, _labels: Tensor) -> Tensor:
    """KL(target || drafter): covers everything that the target might say."""
    wanted = functional.log_softmax(target, -1)
    return (wanted.exp() * (wanted - functional.log_softmax(draft, -1))).sum(-1)


def reverse_kl(draft: Tensor, target: Tensor, _labels: Tensor) -> Tensor:
    """KL(drafter || target): mode-seeking, it rather says one likely thing than a little of each."""
    said = functional.log_softmax(draft, -1)
    return (said.exp() * (said - functional.log_softmax(target, -1))).sum(-1)


def total_variation(draft: Tensor, target: Tensor, _labels: Tensor) -> Tensor:
    """1 - sum(min(p, q)): one less the chance that rejection sampling accepts (arXiv:2211.17192, section 3)."""
    return 1 - torch.minimum(draft.softmax(-1), target.softmax(-1)).sum(-1)


def cross_entropy(draft: Tensor, _target: Tensor, labels: Tensor) -> Tensor:
    """Against the token that the target emitted."""
    return functional.cross_entropy(draft, labels, reduction="none")


TEACHERLESS = {"ce"}
"""Losses that do not look at the target's logits, which then are not computed."""

LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "kl": forward_kl,
    "reverse-kl": reverse_kl,
    "tv": total_variation,
    "ce": cross_entropy,
}


def position_weights(block_size: int, decay: float) -> Tensor:
    """[K-1]: exp(-(i-1)/decay) for the i-th drafted token, since one counts only if all before it were accepted."""
    return torch.exp(-torch.arange(block_size - 1, dtype=torch.float32) / decay)


def head_loss(
    hidden: Tensor, teacher: Tensor | None, labels: Tensor, weights: Tensor, head: Tensor, kind: str, chunk_tokens: int
) -> Tensor:
    """The weighted mean of a loss over N tokens. ``hidden`` and ``teacher`` [N, H] are the states that ``head`` [V, H]
    turns into the drafter's and the target's logits; these exist for ``chunk_tokens`` tokens at a time. ``teacher``
    may be None where ``kind`` is one of :data:`TEACHERLESS`."""
    apply: Any = _HeadLoss.apply
    return cast(Tensor, apply(hidden, teacher, labels, weights, head, LOSSES[kind], chunk_tokens))


class _HeadLoss(torch.autograd.Function):
    """Each chunk's gradient is taken at once, so that its logits can go."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *rest: Any) -> Tensor:
        teacher, labels, weights, head, loss_of, chunk = rest
        gradient = torch.empty_like(hidden)
        total = torch.zeros((), device=hidden.device)
        scale = weights / weights.sum()
        for begin in range(0, len(hidden), chunk):
            part = slice(begin, begin + chunk)
            leaf = hidden[part].detach().requires_grad_()
            with torch.enable_grad():
                drafted = (leaf.to(head.dtype) @ head.T).float()
                wanted = drafted if teacher is None else (teacher[part].to(head.dtype) @ head.T).float().detach()
                loss = (loss_of(drafted, wanted, labels[part]) * scale[part]).sum()
                (gradient[part],) = torch.autograd.grad(loss, leaf)
            total += loss.detach()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * outer, None, None, None, None, None, None
