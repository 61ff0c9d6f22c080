"""How a drafter is trained, as values."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How to train. It ends after ``steps`` or ``max_s`` seconds, whichever comes first; the learning rate warms up
    over ``warmup`` of that and falls to a twentieth along a cosine. ``batch_tokens`` context tokens and ``anchors``
    blocks a sequence make a micro-batch, ``accumulate`` of them a step."""

    steps: int = 1000
    max_s: float = math.inf
    batch_tokens: int = 8192
    accumulate: int = 1
    anchors: int = 64
    learning_rate: float = 1e-3
    warmup: float = 0.03
    weight_decay: float = 0.01
    clip: float = 1.0
    loss: str = "kl"
    decay: float = 4.0
    seed: int = 0
    report_every: int = 100
    chunk_tokens: int = 8192

    def rate(self, step: int, elapsed_s: float) -> float:
        """The learning rate of the step after ``step``, with ``elapsed_s`` gone."""
        done = max(step / self.steps, elapsed_s / self.max_s)
        if done < self.warmup:
            return self.learning_rate * ((done + 1 / self.steps) / (self.warmup + 1 / self.steps))
        return self.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
