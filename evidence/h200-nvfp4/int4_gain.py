"""Does NVFP4 shrink weights that were INT4, and is that what it costs? On a CPU.

    python evidence/h200-nvfp4/int4_gain.py [CHECKPOINT [--tokens 4096]]

``gain`` is <made, source> / <source, source>: 1 for errors that have nothing to do with the weight, less where it comes
out smaller. First for Gaussian weights. With a dense CHECKPOINT, its KL to the BF16 model for each method from INT4, as
made and with each matrix divided by its gain. Needs what benchmarks/nvfp4_quality.py needs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from nvfp4_quality import METHODS, WINDOW_TOKENS, compare, interval, stream_rows, to_int4, to_nvfp4, weights
from transformers import AutoModelForCausalLM, AutoTokenizer


def gain(source: Tensor, made: Tensor) -> float:
    source, made = source.double(), made.double()
    return float((source * made).sum() / (source * source).sum())


def error(source: Tensor, made: Tensor) -> float:
    return float((made.double() - source.double()).norm() / source.double().norm())


def gaussian() -> None:
    torch.manual_seed(0)
    weight = (torch.randn(1024, 2048) * 0.02).bfloat16()
    int4 = to_int4(weight)
    print("Gaussian: error and gain against the source")
    for name, source in (("BF16", weight), ("INT4", int4)):
        for method in METHODS:
            made = to_nvfp4(method)(source)
            print(f"{name} {method:14} {error(source, made):.4f} {gain(source, made):.4f}", flush=True)


def of_checkpoint(checkpoint: Path, tokens: int) -> None:
    model, changed = (AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval() for _ in range(2))
    kept = {name: weight.clone() for name, weight in model.state_dict().items()}
    rows = stream_rows(AutoTokenizer.from_pretrained(checkpoint), tokens, WINDOW_TOKENS, held_out=True)
    print(f"{checkpoint.name}, {len(rows)} windows of {WINDOW_TOKENS} tokens")
    for method in METHODS:
        for mended in (False, True):
            changed.load_state_dict(kept)
            gains = []
            for weight in weights(changed, "everything"):
                int4 = to_int4(weight)
                made = to_nvfp4(method)(int4.float())
                gains.append(gain(int4, made))
                weight.copy_(made / gains[-1] if mended else made)
            kls, tops, _ = compare(model, changed, rows)
            low, high = interval(kls)
            print(
                f"int4, then {method:14} {'divided by its gain' if mended else 'as made':20} mean gain "
                f"{sum(gains) / len(gains):.4f}  KL {sum(kls) / len(kls):.4f} [{low:.4f}, {high:.4f}]  "
                f"top-1 {sum(tops) / len(tops):.4f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--tokens", type=int, default=4096)
    given = parser.parse_args()
    with torch.no_grad():
        gaussian()
        if given.checkpoint:
            of_checkpoint(given.checkpoint, given.tokens)


if __name__ == "__main__":
    main()
