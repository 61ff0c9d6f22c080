"""How many drafted tokens a greedy target accepts, computed from answers that it has given.

An answer of the target is what verification compares with, so one pass tells at every position which drafted tokens
it would accept there; decoding then only hops from block to block: one that starts at token ``a`` and has ``m`` tokens
accepted is followed by one at ``a + m + 1``. The outcome is the engine's, but for rounding. Blocks that reach beyond
the end of the recorded answer are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from optistack_dflash.drafter.blocks import all_anchors, blocks_at, draft_hidden
from optistack_dflash.drafter.corpus import Corpus
from optistack_dflash.drafter.network import Drafter
from optistack_dflash.drafter.target import Target
from optistack_dflash.drafter.transfers import moved


@dataclass
class Acceptance:
    """``steps`` blocks were verified; ``accepted[i]`` of them had their first i+1 tokens accepted."""

    steps: int = 0
    accepted: list[int] = field(default_factory=list)

    @property
    def length(self) -> float:
        """Tokens a step, the target's own token counted, as vLLM and SGLang report it."""
        return 1 + sum(self.accepted) / self.steps if self.steps else 1.0

    @property
    def by_position(self) -> list[float]:
        return [count / self.steps if self.steps else 0.0 for count in self.accepted]

    def add(self, run: int, drafted: int) -> None:
        self.accepted.extend([0] * (drafted - len(self.accepted)))
        self.steps += 1
        for index in range(run):
            self.accepted[index] += 1


def likeliest(hidden: Tensor, head: Tensor, chunk_tokens: int = 4096) -> Tensor:
    """The token that ``head`` [V, H] makes of each state of ``hidden`` [..., H]; logits of ``chunk_tokens`` at a time.

    Flat, because torch on a CPU copies ``head`` for each row of a batch when both are multiplied as they are.
    """
    flat = hidden.flatten(0, -2).to(head.dtype)
    return torch.cat([(part @ head.T).argmax(-1) for part in flat.split(chunk_tokens)]).view(hidden.shape[:-1])


@torch.no_grad()
def measure(
    drafter: Drafter, target: Target, corpus: Corpus, *, batch_tokens: int = 8192, anchors_at_once: int = 64
) -> Acceptance:
    """The acceptance of ``drafter`` over every answer of ``corpus``, which the target gave greedily."""
    size, found = drafter.shape.block_size, Acceptance()
    was_training = drafter.training
    drafter.eval()
    answers: list[tuple[Tensor, Tensor]] = []
    for rows in corpus.in_order(batch_tokens):
        here = corpus.batch(rows)
        blocks = blocks_at(here, *all_anchors(here), size)
        parts = (here.tokens, blocks.anchors, blocks.labels, blocks.known)
        tokens, anchors, labels, known = (moved(part, corpus.device) for part in parts)
        states, _ = target.states(tokens, drafter.shape.captured_layers)
        runs = []
        for begin in range(0, anchors.shape[1], anchors_at_once):
            part = slice(begin, begin + anchors_at_once)
            with torch.autocast(target.device.type, torch.bfloat16):
                hidden = draft_hidden(drafter, target, tokens, states, anchors[:, part])
            says = likeliest(hidden, target.head)
            runs.append(((says == labels[:, part]) & known[:, part]).cumprod(-1).sum(-1))
        answers.append((torch.cat(runs, 1), blocks.known[..., -1]))
    # Read at the end: to read the runs of a batch is to wait for the device.
    for batch_runs, whole in answers:
        for run, usable in zip(batch_runs.tolist(), whole.tolist(), strict=True):
            at = 0
            while at < len(run) and usable[at]:
                found.add(run[at], size - 1)
                at += run[at] + 1
    drafter.train(was_training)
    return found
