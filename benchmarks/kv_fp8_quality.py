"""What FP8 KV costs a model: KL to BF16 KV, top-1 agreement and loss on held-out source, by position and by scales.

    python benchmarks/kv_fp8_quality.py CHECKPOINT OUT.json [--windows 16] [--tokens N] [--device cpu|cuda]

Needs torch, transformers and the plugin kv-fp8. Each window is the head of one held-out source file, as long as the
model's context unless --tokens says less, in one forward pass whose cache rounds what it is given as engines store it:
K after rotary embedding and V, or MLA's latent and its rotary part under one scale, divided by the layer's scale, cast
to E4M3 with saturation, and multiplied back. Scales are those that `kv-fp8 calibrate` computes, here from the source
files that are not held out.

Approximate: K and V read back are rounded to BF16 once more (engines multiply the scale into the float32 scores); and
queries and probabilities stay BF16, which some kernels (FlashAttention 3 with FP8 KV) make FP8 too.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from quality import difference, file_rows, interval, stream_rows
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.cache_utils import DynamicCache

from optistack_kv_fp8.calibration.histogram import E4M3_MAX, Method
from optistack_kv_fp8.calibration.observe import KVStatistics, ObservedCache

CALIBRATION_LENGTH_TOKENS = 2048
METHODS: tuple[Method, ...] = ("amax", "percentile", "mse")
BUCKETS = (0, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

Scales = dict[int, tuple[float, float]]
"""K's and V's by layer."""


class RoundedCache(DynamicCache):
    """A cache whose contents went through E4M3."""

    def __init__(self, scales: Scales, config: Any) -> None:
        super().__init__(config=config)
        self._scales = scales

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        states = zip((key_states, value_states), self._scales[layer_idx], strict=True)
        return super().update(*(rounded(state, scale) for state, scale in states), layer_idx, *args, **kwargs)


def rounded(states: Tensor, scale: float) -> Tensor:
    cast = (states.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (cast.float() * scale).to(states.dtype)


@dataclass(frozen=True)
class Found:
    """``loss_nat`` is with FP8 KV, ``loss_bf16_nat`` with BF16."""

    scales: str
    from_token: int
    to_token: int
    kl_nat: float
    kl_low: float
    kl_high: float
    top1: float
    loss_nat: float
    loss_bf16_nat: float


@torch.no_grad()
def calibrated(model: PreTrainedModel, rows: Tensor) -> dict[str, Scales]:
    """The scales of each method, from what ``model`` caches of ``rows`` [rows, tokens]."""
    config = model.config.get_text_config()
    mla = getattr(config, "kv_lora_rank", None) is not None
    seen = KVStatistics(per_head=False, mla=mla)
    for row in rows.to(model.device):
        model(input_ids=row[None], past_key_values=ObservedCache(seen, config), use_cache=True, logits_to_keep=1)
    found: dict[str, Scales] = {"unit": dict.fromkeys(seen.layers, (1.0, 1.0))}
    for method in METHODS:
        found[method] = {
            layer: (float(key.scales(method)), float(value.scales(method)))
            for layer, (key, value) in seen.layers.items()
        }
    return found


@torch.no_grad()
def measure(model: PreTrainedModel, rows: Tensor, scales: dict[str, Scales]) -> list[Found]:
    config = model.config.get_text_config()
    ends = [end for end in BUCKETS if end < rows.shape[1]] + [rows.shape[1]]
    buckets = list(pairwise(ends))
    by: dict[tuple[str, tuple[int, int]], list[list[float]]] = {}
    for row in rows.to(model.device):
        truth = model(input_ids=row[None], past_key_values=DynamicCache(config=config), use_cache=True).logits[0]
        for name, of_layers in scales.items():
            cache = RoundedCache(of_layers, config)
            seen = difference(truth, model(input_ids=row[None], past_key_values=cache, use_cache=True).logits[0], row)
            for bucket in buckets:
                by.setdefault((name, bucket), []).append([float(one[slice(*bucket)].mean()) for one in seen])
    found = []
    for (name, bucket), windows in by.items():
        kls, *others = (list(column) for column in zip(*windows, strict=True))
        means = [statistics.fmean(one) for one in others]
        found.append(Found(name, *bucket, statistics.fmean(kls), *interval(kls), *means))
        print(
            f"{name:10} {bucket[0]:6} to {bucket[1]:6}  KL {found[-1].kl_nat:.6f} [{found[-1].kl_low:.6f}, "
            f"{found[-1].kl_high:.6f}]  top-1 {means[0]:.4f}  loss {means[1]:.4f} (BF16 {means[2]:.4f})",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--tokens", type=int, help="of each window")
    parser.add_argument("--calibration-tokens", type=int, default=65_536)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    words = AutoTokenizer.from_pretrained(given.checkpoint)
    model = AutoModelForCausalLM.from_pretrained(given.checkpoint, dtype=torch.bfloat16).to(given.device).eval()
    context = model.config.get_text_config().max_position_embeddings
    rows = file_rows(words, given.windows, min(given.tokens or context, context))
    length = min(CALIBRATION_LENGTH_TOKENS, given.calibration_tokens)
    scales = calibrated(model, stream_rows(words, given.calibration_tokens, length, held_out=False))
    said = {
        "checkpoint": given.checkpoint.name,
        "windows": len(rows),
        "window_tokens": rows.shape[1],
        "calibration_tokens": given.calibration_tokens,
        "device": given.device,
        "torch": torch.__version__,
        "scales": scales,
    }
    found = measure(model, rows, scales)
    given.out.write_text(json.dumps({**said, "rows": [vars(one) for one in found]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
