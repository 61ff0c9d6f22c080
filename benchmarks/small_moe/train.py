"""Train a small model of Kimi K2's kind (MLA and routed experts) on Python source, so that its outputs are not noise.

    python benchmarks/small_moe/train.py DIR [--minutes 10] [--batch 8] [--length 4096] [--device cpu|cuda] [--seed 0]

Needs torch, transformers and tokenizers. The model has the MLA geometry that engines' kernels ask for (512 + 64), six
layers of 16 routed experts and a shared one, 37 million parameters, and a context of 4,096 tokens. Meant for a GPU: on
two cores a step of 2,048 tokens takes many seconds. Weights and gradients are BF16, and the optimizer keeps float32
copies, so that transformers' grouped experts run in one kernel. DIR gets a checkpoint in BF16 with its tokenizer, and
training.json: loss on held-out packages by step. The minutes are of training alone.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from text import sources
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
END = "<|end|>"
TOKENIZER_MB = 20
ENCODED_TEXTS = 256
"""Texts that are encoded at once, on all cores."""
HELD_OUT_TOKENS, HELD_OUT_MB = 65_536, 2.0
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
        # What transformers' model computes whatever its config says, and engines only where it does.
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        max_position_embeddings=4096,
        rope_theta=50_000.0,
        num_nextn_predict_layers=0,
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
    made.train_from_iterator(_texts(TOKENIZER_MB, held_out=False), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=END, eos_token=END, pad_token=END)


def _texts(most_mb: float, *, held_out: bool) -> Iterator[str]:
    left = most_mb * 1e6
    for text in sources(held_out=held_out):
        if left < 0:
            return
        yield text
        left -= len(text)


def token_stream(words: PreTrainedTokenizerFast, most_mb: float, *, held_out: bool) -> torch.Tensor:
    """int16 token ids of the texts of a split, END behind each."""
    parts, texts = [], _texts(most_mb, held_out=held_out)
    while some := list(islice(texts, ENCODED_TEXTS)):
        for one in words.backend_tokenizer.encode_batch_fast(some, add_special_tokens=False):
            parts.append(torch.tensor([*one.ids, words.eos_token_id], dtype=torch.int16))
    return torch.cat(parts)


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
                chosen = chosen.flatten()
                load = torch.zeros_like(bias).scatter_add_(0, chosen, torch.ones_like(chosen, dtype=bias.dtype))
                bias += self.rate * torch.sign(load.mean() - load)
        self.chosen.clear()


class Masters:
    """float32 copies of a BF16 model's parameters, which the optimizer moves: its steps are too small for BF16."""

    def __init__(self, model: DeepseekV3ForCausalLM, rate: float) -> None:
        self.rate = rate
        self.of_model = list(model.parameters())
        self.copies = [one.detach().float() for one in self.of_model]
        self.optimizer = torch.optim.AdamW(
            self.copies, lr=rate, betas=(0.9, 0.95), weight_decay=0.1, fused=self.copies[0].is_cuda
        )
        for one in self.of_model:
            one.data = one.data.bfloat16()

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One step of ``scale`` times the rate, on clipped gradients."""
        for copy, one in zip(self.copies, self.of_model, strict=True):
            copy.grad = None if one.grad is None else one.grad.float()  # an expert that nothing reached has none
            one.grad = None
        torch.nn.utils.clip_grad_norm_(self.copies, 1.0)
        self.optimizer.param_groups[0]["lr"] = self.rate * scale
        self.optimizer.step()
        torch._foreach_copy_(self.of_model, self.copies)


def train(folder: Path, given: argparse.Namespace) -> None:
    torch.manual_seed(given.seed)
    began = time.monotonic()
    words = tokenizer()
    stream = token_stream(words, given.text_mb, held_out=False).to(given.device)
    held_out = token_stream(words, HELD_OUT_MB, held_out=True)[: max(HELD_OUT_TOKENS, given.length)]
    held_out = held_out[: len(held_out) // given.length * given.length].view(-1, given.length).long()
    print(f"{len(stream):,} tokens of text and {held_out.numel():,} held out, in {time.monotonic() - began:.0f} s")
    model = DeepseekV3ForCausalLM(config())
    model.set_experts_implementation(given.experts)
    model.to(given.device).train()
    print(f"{sum(one.numel() for one in model.parameters()) / 1e6:.1f} M parameters on {given.device}", flush=True)
    balancer, masters = Balancer(model), Masters(model, given.learning_rate)
    within = torch.arange(given.length, device=given.device)
    curve, step, told, spent = [], 0, -math.inf, 0.0
    while spent < given.minutes:
        began = time.monotonic()
        share = spent / given.minutes
        starts = torch.randint(len(stream) - given.length, (given.batch, 1), device=given.device)
        rows = stream[starts + within].long()
        balancer.chosen.clear()
        loss = model(input_ids=rows, labels=rows, use_cache=False).loss
        loss.backward()
        masters.step(max(min(share / WARM_UP, 0.5 * (1 + math.cos(math.pi * share))), 0.01))
        balancer.step()
        step += 1
        spent += (time.monotonic() - began) / 60
        if spent - told > given.minutes / 10:
            told = spent
            curve.append(_told(model, held_out, given.batch, step, spent, float(loss.detach())))
    curve.append(_told(model, held_out, given.batch, step, spent, float(loss.detach())))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    said = {
        "seed": given.seed,
        "batch": given.batch,
        "length_tokens": given.length,
        "learning_rate": given.learning_rate,
        "device": given.device,
        "text_tokens": len(stream),
        "tokens": step * given.batch * given.length,
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
    parser.add_argument("--length", type=int, default=4096, help="tokens of a row")
    parser.add_argument("--text-mb", type=float, default=200.0, help="of source to train on")
    parser.add_argument("--experts", default="grouped_mm", help="transformers' experts implementation")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    train(given.folder, given)


if __name__ == "__main__":
    main()
