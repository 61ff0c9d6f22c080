"""Acceptance length and tokens/s/user in vLLM without a draft or with one: one engine, all measurements in it.

    python3 bench.py --target CHECKPOINT --prompts PROMPTS.jsonl --out RESULT.json [--draft DRAFT]

Greedy answers to the held-out prompts, by domain: vLLM's counters of speculation give the acceptance length and the
acceptance by position. The answers' ids go to RESULT.<domain>.safetensors, which `optistack dflash evaluate` takes.
Then 1, 4 and 16 held-out code prompts at once, 256 tokens each: tokens/s/user = 256 / seconds, the median of --repeats
after one that is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from optistack_dflash.drafter.provenance import Provenance, fingerprint, template_hash
from optistack_dflash.drafter.shards import Recorded, read_shard, write_shard


def counters(engine: Any) -> tuple[float, float, list[float]]:
    drafts, accepted, by_position = 0.0, 0.0, []
    for metric in engine.get_metrics():
        if metric.name == "vllm:spec_decode_num_drafts":
            drafts = metric.value
        elif metric.name == "vllm:spec_decode_num_accepted_tokens":
            accepted = metric.value
        elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
            by_position = list(metric.values)
    return drafts, accepted, by_position


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="of prompts.py, or a shard of answers to them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--draft-tokens", type=int, default=7)
    parser.add_argument("--answers", type=int, default=200, help="held-out prompts of each domain")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--speed-tokens", type=int, default=256, help="tokens of an answer when speed is measured")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="small and eager, for a trial on a CPU")
    given = parser.parse_args()

    import vllm

    prompts: dict[str, list[list[int]]] = {"code": [], "prose": []}
    if given.prompts.suffix == ".safetensors":
        for one in read_shard(given.prompts)[1]:
            prompts[one.domain].append(list(one.ids[: one.prompt_tokens]))
    else:
        for line in given.prompts.read_text().splitlines():
            asked = json.loads(line)
            if asked["split"] == "held-out":
                prompts[asked["domain"]].append(asked["ids"])
    options: dict[str, Any] = {"enforce_eager": True} if given.cpu else {"gpu_memory_utilization": 0.4}
    if given.draft:
        options["speculative_config"] = {
            "method": "dflash",
            "model": str(given.draft),
            "num_speculative_tokens": given.draft_tokens,
        }
    engine = vllm.LLM(
        model=str(given.target),
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=32,
        max_num_batched_tokens=8192,
        enable_prefix_caching=False,
        disable_log_stats=False,
        **options,
    )
    result: dict[str, Any] = {"engine": f"vllm {vllm.__version__}", "draft": given.draft and given.draft.name}
    greedy = vllm.SamplingParams(temperature=0.0, max_tokens=given.max_tokens, detokenize=False)
    for domain, held_out in prompts.items():
        part = held_out[: given.answers]
        if not part:
            continue
        before = counters(engine)
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in part], greedy, use_tqdm=False)
        after = counters(engine)
        sequences = [
            Recorded((*ids, *out.outputs[0].token_ids), len(ids)) for ids, out in zip(part, outputs, strict=True)
        ]
        provenance = Provenance(
            given.target.name,
            fingerprint(given.target),
            template_hash(given.target),
            (("max_tokens", given.max_tokens), ("temperature", 0.0)),
            f"vllm {vllm.__version__}",
        )
        shard = given.out.with_suffix(f".{domain}.safetensors")
        write_shard(shard, sequences, domain=domain, provenance=provenance)
        drafts, accepted = after[0] - before[0], after[1] - before[1]
        found: dict[str, Any] = {
            "answers": len(sequences),
            "tokens": sum(len(one.ids) - one.prompt_tokens for one in sequences),
        }
        if drafts:
            old = before[2] or [0.0] * len(after[2])
            found["drafts"] = drafts
            found["acceptance_length"] = 1 + accepted / drafts
            found["by_position"] = [(new - past) / drafts for new, past in zip(after[2], old, strict=True)]
        result[domain] = found
        print(domain, json.dumps(found), flush=True)
    fixed = vllm.SamplingParams(temperature=0.0, max_tokens=given.speed_tokens, ignore_eos=True, detokenize=False)
    for users in given.concurrency:
        speeds = []
        for repeat in range(given.repeats + 1):
            part = [prompts["code"][(repeat * users + user) % len(prompts["code"])] for user in range(users)]
            began = time.perf_counter()
            engine.generate([{"prompt_token_ids": ids} for ids in part], fixed, use_tqdm=False)
            speeds.append(given.speed_tokens / (time.perf_counter() - began))
        result[f"tokens_per_s_per_user_{users}"] = {"median": statistics.median(speeds[1:]), "all": speeds[1:]}
        print(f"{users} at once: {statistics.median(speeds[1:]):.1f} tokens/s/user, {speeds[1:]}", flush=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
