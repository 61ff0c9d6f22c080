"""A refreshed drafter takes the old one's place only when it is better on held-out answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from optistack.errors import CheckFailedError
from optistack_dflash.commands import refreshing
from optistack_dflash.drafter.corpus import Corpus
from optistack_dflash.drafter.network import Drafter, load_drafter, save_drafter
from optistack_dflash.drafter.provenance import Provenance
from optistack_dflash.drafter.recipe import Recipe
from optistack_dflash.drafter.refresh import swap_if_better
from optistack_dflash.drafter.shards import Recorded, write_shard
from optistack_dflash.drafter.trainer import Trainer


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

    again = swap_if_better(served, made, target, corpus, gain=0.0, keep=old)
    assert again == gate
    assert (old / "model.safetensors").read_bytes() == before


def test_the_command_keeps_the_old_drafter_and_says_so_when_nothing_was_gained(
    target: Any, answers: list[Recorded], checkpoint: Path, shape: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collected(_endpoint: str, _target: str, _prompts: Path, out: Path, **_: Any) -> None:
        provenance = Provenance(target.name, target.revision, target.template, (("temperature", 0.0),), "test 1")
        write_shard(out / "part-00000.safetensors", answers, domain="code", provenance=provenance)

    monkeypatch.setattr(refreshing.serving, "collect", collected)
    served, work = tmp_path / "served", tmp_path / "work"
    save_drafter(Drafter(shape), served)
    collected("", "", Path(), tmp_path / "held-out")
    before = (served / "model.safetensors").read_bytes()
    given = {"held_out": tmp_path / "held-out", "work": work, "steps": 2, "device": "cpu"}
    with pytest.raises(CheckFailedError, match="stays as it was"):
        refreshing.refresh(served, "http://engine", str(checkpoint), tmp_path / "prompts", gain=9.0, **given)
    assert (served / "model.safetensors").read_bytes() == before
    # The same command again goes on with what is there.
    refreshing.refresh(served, "http://engine", str(checkpoint), tmp_path / "prompts", gain=-1.0, **given)
    assert (work / "old" / "model.safetensors").read_bytes() == before
