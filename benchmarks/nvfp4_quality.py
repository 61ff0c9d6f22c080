"""What NVFP4 weights cost a model's next-token distribution: KL to the unquantized model, by method, source and scope.

    python benchmarks/nvfp4_quality.py CHECKPOINT TEXT... [--tokens 1024 --window 256 --json FILE]

Weights are packed by the codec and unpacked again, and transformers runs the model in float32: what is measured is the
values, not an engine's kernels. gate and up, and q, k and v, share a global scale as engines fuse them. INT4 is made
here, symmetric with a BF16 scale for each 32 values, by rounding to nearest. Needs torch, transformers and the packages
optistack and optistack-quant-nvfp4.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from optistack_quant_nvfp4 import codec

METHODS: tuple[codec.Method, ...] = ("amax", "mse", "four-over-six")
SCOPES = {
    "experts": r"\.mlp\.experts\.",
    "shared experts": r"\.shared_experts\.",
    "dense MLP": r"\.layers\.\d+\.mlp\.(gate|up|down)_proj",
    "attention": r"\.self_attn\.\w+_(proj|proj_with_mqa)\.",
    "everything": r"\.mlp\.experts\.|\.(gate|up|down|q|k|v|o|q_a|q_b|kv_b)_proj|kv_a_proj_with_mqa",
}
FUSED = re.compile(r"\.(?:gate|up)_proj|\.[qkv]_proj|\.(?:q_a_proj|kv_a_proj_with_mqa)")


def int4(weight: torch.Tensor) -> torch.Tensor:
    """float32 of ``weight`` as INT4 in groups of 32."""
    groups = weight.unflatten(1, (-1, 32))
    scale = (groups.abs().amax(-1, keepdim=True) / 7).clamp(min=1e-20).to(torch.bfloat16).float()
    return ((groups / scale).round().clamp(-8, 7) * scale).flatten(1)


def matrices(model: Any, scope: str) -> dict[str, list[torch.Tensor]]:
    """The matrices in ``scope`` as views, those that share a global scale together; no router, embedding or head."""
    found: dict[str, list[torch.Tensor]] = defaultdict(list)
    for name, weight in model.named_parameters():
        if weight.dim() < 2 or not re.search(SCOPES[scope], name) or name.endswith("mlp.gate.weight"):
            continue
        for number, matrix in enumerate(weight.data if weight.dim() == 3 else [weight.data]):
            shared = FUSED.search(name)
            found[f"{name[: shared.start()]} {shared.group()[:2]}" if shared else f"{name} {number}"].append(matrix)
    return found


def change(model: Any, scope: str, method: codec.Method | None, *, from_int4: bool) -> int:
    """Put what ``scope`` becomes into ``model``; the count of values changed."""
    count = 0
    for group in matrices(model, scope).values():
        sources = [int4(matrix) if from_int4 else matrix.clone() for matrix in group]
        if method is not None:
            scale = codec.global_scale_of(torch.stack([one.abs().max() for one in sources]), method)
            sources = [codec.dequantize(codec.quantize(one, scale, method)) for one in sources]
        for matrix, value in zip(group, sources, strict=True):
            matrix.copy_(value)
            count += matrix.numel()
    return count


def log_probabilities(model: Any, windows: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return torch.cat([model(window[None]).logits[0].log_softmax(-1) for window in windows])


def compare(reference: torch.Tensor, changed: torch.Tensor) -> dict[str, float]:
    """Mean KL(reference, changed) in nats, twice its standard error, and how often the likeliest token is the same."""
    each = (reference.exp() * (reference - changed)).sum(-1).double()
    top = (reference.argmax(-1) == changed.argmax(-1)).double().mean()
    return {
        "kl": float(each.mean()),
        "kl_two_se": float(2 * each.std() / math.sqrt(len(each))),
        "top_1": float(top),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("text", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.checkpoint)
    share = given.tokens // len(given.text) // given.window * given.window
    pieces = [tokenizer(file.read_text(encoding="utf-8"))["input_ids"][:share] for file in given.text]
    windows = torch.tensor([token for piece in pieces for token in piece[: len(piece) // given.window * given.window]])
    windows = windows.view(-1, given.window)
    model = AutoModelForCausalLM.from_pretrained(given.checkpoint, dtype=torch.float32).eval()
    saved = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    reference = log_probabilities(model, windows)
    rows: list[dict[str, Any]] = []
    whole: list[tuple[codec.Method | None, bool]] = [(one, False) for one in METHODS]
    whole += [(None, True), ("amax", True), ("mse", True), ("four-over-six", True)]
    cases = [("everything", *one) for one in whole]
    cases += [(scope, "amax", False) for scope in SCOPES if scope != "everything"]
    for scope, method, from_int4 in cases:
        with torch.no_grad():
            count = change(model, scope, method, from_int4=from_int4)
        if count:
            source = "INT4" if from_int4 else "BF16"
            row = {"scope": scope, "source": source, "method": method or "none (INT4 itself)", "values": count}
            row |= compare(reference, log_probabilities(model, windows))
            rows.append(row)
            print(
                f"{scope}: {source} to NVFP4 by {row['method']}: KL {row['kl']:.5f} +- {row['kl_two_se']:.5f}, "
                f"same likeliest token {row['top_1']:.1%}, {count:,} values",
                flush=True,
            )
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(saved[name])
    if given.json:
        report = {"checkpoint": given.checkpoint.name, "tokens": windows.numel(), "rows": rows}
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
