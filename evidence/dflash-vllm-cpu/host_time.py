"""What the host spends on a training step: a target as deep as SmolLM2 and so narrow that nothing but the host counts.

    python host_time.py [--steps 30] [--profile]

On a GPU the host must launch all this while the GPU computes; where it takes longer, the GPU waits.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
import warnings
from pathlib import Path

import torch
import transformers

from optistack_dflash.drafter.corpus import Corpus
from optistack_dflash.drafter.network import Drafter
from optistack_dflash.drafter.recipe import Recipe
from optistack_dflash.drafter.shape import DrafterShape
from optistack_dflash.drafter.shards import Recorded
from optistack_dflash.drafter.target import Target
from optistack_dflash.drafter.trainer import Trainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=30,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=64,
            max_position_embeddings=256,
        )
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        target = Target.load(Path(folder), torch.device("cpu"))
        answers = [Recorded(tuple(torch.randint(0, 63, (24,)).tolist()), 8) for _ in range(512)]
        shape = DrafterShape.for_target(
            target.config, layers=3, captured_layers=(1, 14, 27), block_size=8, mask_token_id=63
        )
        corpus = Corpus(answers, torch.device("cpu"), max_tokens=64)
        recipe = Recipe(steps=10**6, batch_tokens=768, anchors=4, loss="ce")
        trainer = Trainer(Drafter(shape), target, corpus, None, recipe, Path(folder) / "out")
        trainer.drafter.train()
        batches = trainer._batches()
        for _ in range(5):
            trainer._step(batches)
        rounds = []
        profile = cProfile.Profile()
        for _ in range(given.rounds):
            began = time.process_time()
            if given.profile:
                profile.enable()
            for _ in range(given.steps):
                trainer._step(batches)
                trainer.state.step += 1
            profile.disable()
            rounds.append(1000 * (time.process_time() - began) / given.steps)
        print("ms a step, the rounds:", ", ".join(f"{one:.1f}" for one in sorted(rounds)))
        if given.profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
