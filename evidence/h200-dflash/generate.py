"""The target's answers to the prompts of prompts.py: raw token ids from vLLM, in shards that training reads.

    python3 generate.py --target CHECKPOINT --prompts PROMPTS.jsonl --out DATA [--seconds 200] [--shard 2048]

DATA/train/{code,prose} get half greedy answers and half sampled at temperature 0.8, as many as the time allows, the two
domains by turns; DATA/held-out/{code,prose} get greedy ones. Every shard is written whole.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from optistack_dflash.drafter.provenance import Provenance, fingerprint, template_hash
from optistack_dflash.drafter.shards import Recorded, write_shard

GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200, help="for all generation, the engine's start not counted")
    parser.add_argument("--shard", type=int, default=2048, help="sequences a shard")
    parser.add_argument("--max-tokens", type=int, default=384)
    parser.add_argument("--seqs", type=int, default=512, help="sequences at once")
    parser.add_argument("--domains", nargs="*", default=["code", "prose"], help="of what is trained on")
    parser.add_argument("--cpu", action="store_true", help="small and eager, for a trial on a CPU")
    given = parser.parse_args()

    import vllm

    prompts: dict[tuple[str, str], list[list[int]]] = defaultdict(list)
    for line in given.prompts.read_text().splitlines():
        one = json.loads(line)
        prompts[one["split"], one["domain"]].append(one["ids"])

    on_device = (
        {"enforce_eager": True} if given.cpu else {"gpu_memory_utilization": 0.6, "max_num_batched_tokens": 16384}
    )
    engine = vllm.LLM(
        model=str(given.target),
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=given.seqs,
        enable_prefix_caching=False,
        **on_device,
    )
    revision, template, began = fingerprint(given.target), template_hash(given.target), time.monotonic()
    written = 0

    tokenizer = engine.get_tokenizer()

    def changed(sequences: list[Recorded]) -> float:
        """The share of answers whose ids are others once their text is tokenized again."""
        answers = [list(one.ids[one.prompt_tokens :]) for one in sequences[:256]]
        again = [tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) for ids in answers]
        return sum(ids != back for ids, back in zip(answers, again, strict=True)) / len(answers)

    def answer(split: str, domain: str, part: list[list[int]], sampling: dict[str, Any], name: str) -> None:
        nonlocal written
        parameters = vllm.SamplingParams(max_tokens=given.max_tokens, detokenize=False, seed=None, **sampling)
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in part], parameters, use_tqdm=False)
        sequences = [
            Recorded((*ids, *output.outputs[0].token_ids), len(ids)) for ids, output in zip(part, outputs, strict=True)
        ]
        provenance = Provenance(
            target=given.target.name,
            revision=revision,
            template=template,
            sampling=tuple(sorted({**sampling, "max_tokens": given.max_tokens}.items())),
            engine=f"vllm {vllm.__version__}",
        )
        write_shard(given.out / split / domain / f"{name}.safetensors", sequences, domain=domain, provenance=provenance)
        tokens = sum(len(one.ids) - one.prompt_tokens for one in sequences)
        written += tokens
        seconds = time.monotonic() - began
        print(
            f"{seconds:6.1f} s  {split} {domain} {name}: {len(sequences)} answers, {tokens} tokens; "
            f"{written} tokens in all, {written / seconds:.0f} a second; text tokenized again has other ids in "
            f"{changed(sequences):.0%}",
            flush=True,
        )

    for domain in ("code", "prose"):
        answer("held-out", domain, prompts["held-out", domain], GREEDY, "greedy")
    number = 0
    while time.monotonic() - began < given.seconds:
        begin = number // len(given.domains) * given.shard
        domain = given.domains[number % len(given.domains)]
        part = prompts["train", domain][begin : begin + given.shard]
        number += 1
        if part:
            sampling = (GREEDY, SAMPLED)[number // 2 % 2]
            answer("train", domain, part, sampling, f"{'greedy' if sampling is GREEDY else 'sampled'}-{number:04d}")
        elif all(begin >= len(prompts["train", each]) for each in given.domains):
            break


if __name__ == "__main__":
    main()
