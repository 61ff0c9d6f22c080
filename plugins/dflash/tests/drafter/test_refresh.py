"""A refreshed drafter takes the old one's place only when it is better on held-out answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from optistack_dflash.drafter.corpus import Corpus
from optistack_dflash.drafter.network import Drafter, load_drafter, save_drafter
from optistack_dflash.drafter.refresh import swap_if_better
from optistack_dflash.drafter.shards import Recorded
from optistack_dflash.drafter.trainer import Recipe, Trainer


@pytest.fixture
def corpus(answers: list[Recorded]) -> Corpus:
    return Corpus(answers, torch.device("cpu"), max_tokens=64)


def test_only_a_better_drafter_takes_the_place_of_the_old_one(
    target: Any, corpus: Corpus, shape: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    served, made, old = tmp_path / "served", tmp_path / "new", tmp_path / "old"
    save_drafter(Drafter(shape), served)
    before = (served / "model.safetensors").read_bytes()
    recipe = Recipe(steps=60, learning_rate=5e-3, anchors=32)
    Trainer(load_drafter(served), target, corpus, None, recipe, made).run()

    gate = swap_if_better(served, made, target, corpus, gain=9.0, keep=old)
    assert not gate.swapped and (served / "model.safetensors").read_bytes() == before and not old.exists()

    gate = swap_if_better(served, made, target, corpus, gain=0.02, keep=old)
    assert gate.swapped and gate.after > gate.before
    assert (served / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()
    assert (old / "model.safetensors").read_bytes() == before
