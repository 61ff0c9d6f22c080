"""What NVFP4 costs a model: KL to BF16 and top-1 agreement on held-out source, by scope, by method and by source.

    python benchmarks/nvfp4_quality.py CHECKPOINT OUT.json [--tokens 8192] [--device cpu|cuda]

Needs torch, transformers and the plugin quant-nvfp4. Weights are packed and read back in place; activations stay as
they are (the weight-only path of a GPU without FP4 tensor cores). The text is Python source of packages that
small_moe/train.py holds out. Intervals are bootstrapped over windows of 512 tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from quality import difference, interval, stream_rows
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from optistack_quant_nvfp4.codec import Method, dequantize, global_scale_of, quantize

WINDOW_TOKENS = 512
INT4_GROUP = 32
METHODS: tuple[Method, ...] = ("amax", "mse", "four-over-six")
SCOPES = {
    "routed experts": ("mlp.experts.",),
    "shared experts": ("mlp.shared_experts.",),
    "mlp": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "attention": ("self_attn.",),
    "everything": ("mlp.", "self_attn."),
}
NEVER = ("mlp.gate.", "norm", "bias")
"""Router, norms and biases stay as they are; embeddings and the head are in no scope."""

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Found:
    scope: str
    change: str
    tensors: int
    kl_nat: float
    kl_low: float
    kl_high: float
    top1: float
    loss_nat: float


def to_nvfp4(method: Method) -> Change:
    def change(weight: Tensor) -> Tensor:
        scale = global_scale_of(weight, method)
        return dequantize(quantize(weight, scale, method), weight.dtype)

    return change


def to_int4(weight: Tensor) -> Tensor:
    """Symmetric INT4 in groups of 32 with a BF16 scale, as Kimi K2's checkpoints have it."""
    groups = weight.float().unflatten(1, (-1, INT4_GROUP))
    scale = (groups.abs().amax(-1, keepdim=True) / 7.5).bfloat16().float().clamp(min=1e-12)
    return ((groups / scale).round().clamp(-8, 7) * scale).flatten(1).to(weight.dtype)


def weights(model: PreTrainedModel, scope: str) -> Iterator[Tensor]:
    """The matrices of a scope; experts that one parameter [experts, rows, cols] holds come one by one."""
    for name, weight in model.named_parameters():
        if any(part in name for part in SCOPES[scope]) and not any(part in name for part in NEVER):
            yield from weight.data if weight.dim() == 3 else [weight.data]


@torch.no_grad()
def compare(
    model: PreTrainedModel, changed: PreTrainedModel, rows: Tensor
) -> tuple[list[float], list[float], list[float]]:
    """By window: KL(model || changed) in nats a token, share of equal best tokens, loss of ``changed``."""
    kls, tops, losses = [], [], []
    for row in rows.to(model.device):
        truth, other = (one(input_ids=row[None]).logits[0] for one in (model, changed))
        found = difference(truth, other, row)
        kls.append(float(found.kl.mean()))
        tops.append(float(found.same.mean()))
        losses.append(float(found.loss.mean()))
    return kls, tops, losses


def measure(checkpoint: Path, tokens: int, device: str) -> list[Found]:
    def load() -> PreTrainedModel:
        return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).to(device).eval()

    model, changed = load(), load()
    kept = {name: weight.clone() for name, weight in model.state_dict().items()}
    rows = stream_rows(AutoTokenizer.from_pretrained(checkpoint), tokens, WINDOW_TOKENS, held_out=True)

    def run(scope: str, name: str, *changes: Change) -> Found | None:
        changed.load_state_dict(kept)
        count = 0
        for weight in weights(changed, scope):
            for change in changes:
                weight.copy_(change(weight))
            count += 1
        if not count:
            return None
        kls, tops, losses = compare(model, changed, rows)
        found = Found(
            scope, name, count, statistics.fmean(kls), *interval(kls), statistics.fmean(tops), statistics.fmean(losses)
        )
        print(
            f"{scope:16} {name:22} {count:5} tensors  KL {found.kl_nat:.5f} [{found.kl_low:.5f}, {found.kl_high:.5f}]  "
            f"top-1 {found.top1:.4f}  loss {found.loss_nat:.4f}",
            flush=True,
        )
        return found

    jobs = [(scope, method, (to_nvfp4(method),)) for scope in SCOPES for method in METHODS]
    for scope in ("routed experts", "everything"):
        jobs.append((scope, "int4", (to_int4,)))
        jobs += [(scope, f"int4, then {method}", (to_int4, to_nvfp4(method))) for method in METHODS]
    return [found for job in jobs if (found := run(job[0], job[1], *job[2])) is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    found = measure(given.checkpoint, given.tokens, given.device)
    said = {
        "checkpoint": given.checkpoint.name,
        "tokens": given.tokens,
        "device": given.device,
        "torch": torch.__version__,
    }
    given.out.write_text(json.dumps({**said, "rows": [vars(one) for one in found]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
