"""The end of a refresh: a drafter that is better on held-out answers takes the old one's place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from optistack_dflash.drafter.acceptance import measure
from optistack_dflash.drafter.corpus import Corpus
from optistack_dflash.drafter.network import Drafter, load_drafter, save_drafter
from optistack_dflash.drafter.target import Target


@dataclass(frozen=True)
class Gate:
    """Acceptance lengths on held-out answers, and whether the new drafter was put in the old one's place."""

    before: float
    after: float
    swapped: bool


def swap_if_better(draft: Path, candidate: Path, target: Target, held_out: Corpus, *, gain: float, keep: Path) -> Gate:
    """Put ``candidate`` in the place of ``draft`` if its acceptance length is at least (1 + ``gain``) times as long.

    The old drafter goes to ``keep`` first. An engine that has loaded ``draft`` goes on with what it loaded until it is
    started again. InputError when the disk is full; ``draft`` is then the old one. Done again, it comes to the same:
    where ``candidate`` is in its place already, the old drafter is the one in ``keep``.
    """
    old, new = load_drafter(draft), load_drafter(candidate)
    if (keep / "config.json").is_file() and _same(old, new):
        old = load_drafter(keep)
    target.check(new.shape)
    before = measure(old.to(target.device), target, held_out).length
    after = measure(new.to(target.device), target, held_out).length
    better = after >= (1 + gain) * before
    if better:
        save_drafter(old, keep)
        save_drafter(new, draft)
    return Gate(before, after, better)


def _same(one: Drafter, other: Drafter) -> bool:
    if one.shape != other.shape:
        return False
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())
