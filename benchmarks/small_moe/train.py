"""Train a small model of Kimi K2's kind (MLA and routed experts) on Python source, so that its outputs are not noise.

    python benchmarks/small_moe/train.py DIR [--minutes 10] [--device cpu|cuda] [--seed 0]

Needs torch, transformers and tokenizers. The model has the MLA geometry that engines' kernels ask for (512 + 64), six
layers of 16 routed experts and a shared one, and 37 million parameters. Meant for a GPU: on two cores a step of 2,048
tokens takes many seconds. DIR gets a checkpoint in BF16 with its
tokenizer, and training.json: loss on held-out packages by step.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from text import sources
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
END = "<|end|>"
LENGTH_TOKENS = 256
TOKENIZER_BYTES = 20_000_000
HELD_OUT_TOKENS = 8_192
WARM_UP = 0.05
"""Share of the time in which the learning rate rises; behind it falls as a cosine."""


def config() -> DeepseekV3Config:
    return DeepseekV3Config(
        vocab_size=VOCABULARY,
        hidden_size=384,
        num_hidden_layers=6,
        first_k_dense_replace=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=256,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        intermediate_size=1024,
        moe_intermediate_size=256,
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        max_position_embeddings=4096,
        rope_theta=50_000.0,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of the training text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(_up_to(TOKENIZER_BYTES), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=END, eos_token=END, pad_token=END)


def _up_to(most_bytes: int) -> Iterator[str]:
    for text in sources(held_out=False):
        yield text
        most_bytes -= len(text)
        if most_bytes < 0:
            return


def token_stream(words: PreTrainedTokenizerFast, *, held_out: bool) -> Iterator[int]:
    """Token ids of every text, END between them; training text comes round again, held-out text does not."""
    while True:
        for text in sources(held_out=held_out):
            yield from words.encode(text, add_special_tokens=False)
            yield words.eos_token_id
        if held_out:
            return


def take(stream: Iterator[int], rows: int) -> torch.Tensor:
    """``[rows, LENGTH_TOKENS + 1]`` token ids."""
    ids = [next(stream) for _ in range(rows * (LENGTH_TOKENS + 1))]
    return torch.tensor(ids).view(rows, LENGTH_TOKENS + 1)


@torch.no_grad()
def held_out_loss(model: DeepseekV3ForCausalLM, rows: torch.Tensor, batch: int) -> float:
    """Nats a token."""
    model.eval()
    total = 0.0
    for part in rows.split(batch):
        part = part.to(model.device)
        total += float(model(input_ids=part, labels=part).loss) * len(part)
    model.train()
    return total / len(rows)


class Balancer:
    """Evens out the experts as DeepSeek-V3 does: a bias for the choice alone, moved against each expert's load.

    Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts".
    """

    def __init__(self, model: DeepseekV3ForCausalLM, rate: float = 1e-3) -> None:
        self.rate = rate
        self.layers = [layer.mlp for layer in model.model.layers if hasattr(layer.mlp, "gate")]
        self.chosen: list[torch.Tensor] = []
        for layer in self.layers:
            layer.experts.register_forward_pre_hook(lambda _, taken: self.chosen.append(taken[1]))

    def step(self) -> None:
        with torch.no_grad():
            for layer, chosen in zip(self.layers, self.chosen, strict=True):
                bias = layer.gate.e_score_correction_bias
                load = torch.bincount(chosen.flatten(), minlength=len(bias)).float()
                bias += self.rate * torch.sign(load.mean() - load)
        self.chosen.clear()


def train(folder: Path, minutes: float, device: str, batch: int, rate: float, seed: int) -> None:
    torch.manual_seed(seed)
    words = tokenizer()
    model = DeepseekV3ForCausalLM(config()).to(device)
    model.train()
    print(f"{sum(one.numel() for one in model.parameters()) / 1e6:.1f} M parameters on {device}")
    balancer = Balancer(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    stream = token_stream(words, held_out=False)
    held_out = take(token_stream(words, held_out=True), HELD_OUT_TOKENS // LENGTH_TOKENS)
    autocast = torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")
    curve, step, told, spent = [], 0, -math.inf, 0.0
    while spent < minutes:
        began = time.monotonic()
        share = spent / minutes
        scale = min(share / WARM_UP, 0.5 * (1 + math.cos(math.pi * share)))
        optimizer.param_groups[0]["lr"] = rate * max(scale, 0.01)
        rows = take(stream, batch).to(device)
        balancer.chosen.clear()
        with autocast:
            loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        balancer.step()
        step += 1
        spent += (time.monotonic() - began) / 60
        if spent - told > minutes / 10:
            told = spent
            curve.append(_told(model, held_out, batch, step, spent, float(loss.detach())))
    curve.append(_told(model, held_out, batch, step, minutes, float(loss.detach())))
    model.to(torch.bfloat16).save_pretrained(folder)
    words.save_pretrained(folder)
    said = {
        "seed": seed,
        "batch": batch,
        "learning_rate": rate,
        "device": device,
        "tokens": step * batch * LENGTH_TOKENS,
    }
    (folder / "training.json").write_text(json.dumps({**said, "curve": curve}, indent=1) + "\n")


def _told(
    model: DeepseekV3ForCausalLM, held_out: torch.Tensor, batch: int, step: int, minutes: float, loss: float
) -> dict[str, float]:
    now = {
        "step": step,
        "minutes": round(minutes, 2),
        "loss": round(loss, 4),
        "held_out": round(held_out_loss(model, held_out, batch), 4),
    }
    print(json.dumps(now), flush=True)
    return now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    train(given.folder, given.minutes, given.device, given.batch, given.learning_rate, given.seed)


if __name__ == "__main__":
    main()
