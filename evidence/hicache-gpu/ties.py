"""How near the tokens are that `checks.py ... hits-by-tier` asks for: greedy answers to its random prompt turn on ties.

    python evidence/hicache-gpu/ties.py CHECKPOINT

With transformers on a CPU: the 8 tokens that follow the prompt and by how many nat each is ahead of the next best, for
a whole prompt and for one whose last 40 or 8 tokens are computed on KV of the rest, in float32 and BF16.
"""

from __future__ import annotations

import random
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    checkpoint = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    prompt = torch.tensor([random.Random("the same prompt in every run").choices(range(1000, 40_000), k=1000)])
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
        for cached in (0, 960, 992):
            answer, ahead = follow(model, prompt, cached)
            print(f"{dtype}, {cached} cached: {tokenizer.decode(answer)!r} {ahead}")


@torch.no_grad()
def follow(model: torch.nn.Module, prompt: torch.Tensor, cached: int) -> tuple[list[int], list[float]]:
    kv = model(prompt[:, :cached], use_cache=True).past_key_values if cached else None
    ids, answer, ahead = prompt[:, cached:], list[int](), list[float]()
    for _ in range(8):
        says = model(ids, past_key_values=kv, use_cache=True)
        kv, best = says.past_key_values, torch.log_softmax(says.logits[0, -1].float(), -1).topk(2)
        answer.append(int(best.indices[0]))
        ahead.append(round(float(best.values[0] - best.values[1]), 3))
        ids = best.indices[:1][None]
    return answer, ahead


if __name__ == "__main__":
    main()
