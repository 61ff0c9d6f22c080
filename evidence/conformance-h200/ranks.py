"""The greedy tokens of a recorded baseline, seen by transformers in float32 on a CPU: their rank there, and by how much
the recorded log probabilities differ.

python evidence/conformance-h200/ranks.py CHECKPOINT evidence/conformance-h200/baseline-quick.json

Needs torch and transformers.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    checkpoint, recording = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    sequences = json.loads(Path(recording).read_text())["sequences"]
    tokens = best = equal = 0
    largest = 0.0
    for one in sequences:
        start = len(one["prompt_ids"]) - 1
        with torch.no_grad():
            logs = model(torch.tensor([one["prompt_ids"] + one["output_ids"]])).logits[0].log_softmax(-1)
        for at, token in enumerate(one["output_ids"]):
            row = logs[start + at]
            tokens += 1
            best += int(row.argmax()) == token
            largest = max(largest, abs(float(row[token]) - one["decode_logprobs"][at]))
        equal += one["decode_logprobs"] == one["prefill_logprobs"] == one["batched_logprobs"]
    print(f"{best} of {tokens} tokens are the best ones, log probabilities differ by at most {largest:.3f} nat")
    print(f"{equal} of {len(sequences)} sequences: decode, prefill and prefill in a batch equal to the bit")


if __name__ == "__main__":
    main()
