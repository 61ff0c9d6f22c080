"""Greedy margin: is every token that an engine emits greedily one that its own model would pick, up to rounding?

Speculation, cache tiers and routing promise not to change the answer. They do change batch shapes, and so the rounding
of logits, and two nearly equal logits may swap: the text then differs although nothing is wrong. So texts are not
compared. Each generated sequence is scored again by the same engine as one prefill, without drafting, and at every
position the emitted token may lie below the best one by a small margin only::

    margin = logprob(best token) - logprob(emitted token)        in nat, 0 where the emitted token is the best

A token that the model would not have picked (a draft accepted wrongly, KV of another prompt) misses by far more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

QUANTIZED_KV = ("fp8", "fp4", "nvfp4", "mxfp", "int")


@dataclass(frozen=True)
class ScoredToken:
    """One generated token as the prefill sees it. Log probabilities in nat; ``position`` counts from the first one."""

    sequence: int
    position: int
    emitted: int
    emitted_logprob: float
    best: int
    best_logprob: float

    @property
    def margin_nat(self) -> float:
        return self.best_logprob - self.emitted_logprob


@dataclass(frozen=True)
class MarginVerdict:
    """``worst`` is the token with the largest margin, None when nothing was scored; ``swapped`` tokens were not the
    best one, ``outside`` are those whose margin is beyond the bound (or is not a number)."""

    bound_nat: float
    tokens: int
    swapped: int
    outside: tuple[ScoredToken, ...]
    worst: ScoredToken | None

    @property
    def passed(self) -> bool:
        """True when something was scored and nothing is outside."""
        return self.tokens > 0 and not self.outside

    def describe(self) -> str:
        if self.worst is None:
            return "no token was scored"
        text = f"{self.tokens} tokens, {self.swapped} not the best one, largest margin {self.worst.margin_nat:.3f} nat"
        if not self.outside:
            return text
        first = self.outside[0]
        return (
            f"{text}; {len(self.outside)} beyond {self.bound_nat:g} nat, the first at token {first.position} of "
            f"sequence {first.sequence}: {first.emitted} emitted, {first.best} is better by {first.margin_nat:.3f} nat"
        )


BOUND_NAT = 0.5
"""For KV in 16 or 32 bits. Measured with vLLM 0.32 on a CPU, SmolLM2-135M in BF16, ten prompts of 64 tokens drafted by
an untrained DFlash draft: 0.000, and at most 0.125 where texts with and without speculation part. A corrupted token is
off by 14.6 or more there, and the second best token by 0.75 to 4.5 in the median of a prompt."""

QUANTIZED_KV_BOUND_NAT = 2.0
"""For KV in 8 bits or less. Measured as above with FP8 KV: 0.000, and at most 0.875 where texts part."""


def bound_nat(kv_dtype: str | None) -> float:
    """How far below the best token a greedy one may lie, for a KV dtype (None: not stated, 16 bits)."""
    return QUANTIZED_KV_BOUND_NAT if kv_dtype and kv_dtype.startswith(QUANTIZED_KV) else BOUND_NAT


def judge(scored: Iterable[ScoredToken], bound_nat: float) -> MarginVerdict:
    """The verdict on ``scored`` tokens under ``bound_nat``. Pure."""
    tokens = list(scored)
    outside = tuple(token for token in tokens if not token.margin_nat <= bound_nat)
    return MarginVerdict(
        bound_nat=bound_nat,
        tokens=len(tokens),
        swapped=sum(token.emitted != token.best for token in tokens),
        outside=outside,
        worst=max(tokens, key=_badness, default=None),
    )


def _badness(token: ScoredToken) -> float:
    return math.inf if math.isnan(token.margin_nat) else token.margin_nat
