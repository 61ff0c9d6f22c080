"""The acceptance that is computed from recorded answers is the one that decoding block by block reaches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from optistack_dflash.drafter.acceptance import Acceptance, measure
from optistack_dflash.drafter.corpus import Corpus
from optistack_dflash.drafter.network import Drafter
from optistack_dflash.drafter.recipe import Recipe
from optistack_dflash.drafter.shards import Recorded
from optistack_dflash.drafter.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def drafter(target: Any, answers: list[Recorded], shape: Any, tmp_path_factory: pytest.TempPathFactory) -> Drafter:
    torch.manual_seed(0)
    made = Drafter(shape)
    recipe = Recipe(steps=150, learning_rate=5e-3, anchors=32)
    Trainer(made, target, Corpus(answers, CPU, max_tokens=64), None, recipe, tmp_path_factory.mktemp("drafter")).run()
    return made


def decode(drafter: Drafter, target: Any, prompt: list[int], tokens: int) -> tuple[list[int], Acceptance]:
    """Plain block decoding: draft one block after what is known, let the target verify it, keep what it would say."""
    shape, known, found = drafter.shape, [*prompt, *target.greedy(prompt, 1, set())], Acceptance()
    while len(known) - len(prompt) < tokens:
        context = torch.tensor([known[:-1]])
        states, _ = target.states(context, shape.captured_layers)
        block = torch.tensor([[known[-1], *[shape.mask_token_id] * (shape.block_size - 1)]])
        at = len(known) - 1
        positions = torch.arange(at, at + shape.block_size)[None]
        mask = torch.ones(1, 1, shape.block_size, at + shape.block_size, dtype=torch.bool)
        with torch.no_grad():
            hidden = drafter(states, target.embed(block), torch.arange(at)[None], positions, mask)
            drafted = (hidden[0, 1:] @ target.head.T).argmax(-1).tolist()
            verified = target.model(torch.tensor([[*known, *drafted]])).logits[0, at:].argmax(-1).tolist()
        run = 0
        while run < len(drafted) and drafted[run] == verified[run]:
            run += 1
        found.add(run, len(drafted))
        known += [*drafted[:run], verified[run]]
    return known, found


def test_hopping_over_a_recorded_answer_is_decoding_block_by_block(
    drafter: Drafter, target: Any, answers: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In 32 bits all the way, so that no logit is rounded differently by the two paths.
    monkeypatch.setattr(torch, "autocast", lambda *_: torch.no_grad())
    total = Acceptance()
    for one in answers:
        prompt = list(one.ids[: one.prompt_tokens])
        known, found = decode(drafter, target, prompt, 64)
        hopped = measure(drafter, target, Corpus([Recorded(tuple(known), len(prompt))], CPU, max_tokens=256))
        # Blocks that reach beyond the end of the answer are not counted.
        assert found.steps - 4 <= hopped.steps <= found.steps
        if hopped.steps == found.steps:
            assert hopped.accepted == found.accepted
        total.steps += hopped.steps
    assert total.steps > 50


def test_a_drafter_learns_a_handful_of_answers(drafter: Drafter, target: Any, answers: list[Recorded]) -> None:
    corpus = Corpus(answers, CPU, max_tokens=64)
    torch.manual_seed(1)
    before = measure(Drafter(drafter.shape), target, corpus)
    after = measure(drafter, target, corpus)
    assert before.length < 1.5
    assert after.length > before.length + 0.3
    assert after.by_position == sorted(after.by_position, reverse=True)
