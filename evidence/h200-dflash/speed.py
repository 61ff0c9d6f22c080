"""Tokens/s/user and acceptance of a running vLLM or SGLang, with a draft or without.

    python speed.py --endpoint URL --prompts SHARD.safetensors [--users 1 4 16] [--let-end] [--out RESULT.json]

The prompts of a shard are answered greedily, as token ids, --tokens tokens each: tokens/s/user is --tokens over the
time of a round, the median of --repeats rounds after one that is not counted. Rounds take the shard's prompts in its
order, so that two engines answer the same ones. Acceptance is what the engine counts: SGLang in every answer, vLLM in
its metrics.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from optistack.verify.endpoint import Endpoint
from optistack_dflash.drafter.shards import read_shard
from optistack_dflash.probe_counters import vllm_counters, vllm_moved


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--users", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--let-end", action="store_true", help="answers may end; tokens/s/user means little then")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    prompts = [list(one.ids[: one.prompt_tokens]) for one in read_shard(given.prompts)[1]]
    found: dict[str, Any] = {}
    ending = {"ignore_eos": not given.let_end}
    with Endpoint(given.endpoint) as engine:
        vllm = engine.get_json("/version") is not None
        model = engine.model() if vllm else ""

        def answer(ids: list[int]) -> dict[str, Any]:
            if vllm:
                body = {"model": model, "prompt": ids, "max_tokens": given.tokens, "temperature": 0, **ending}
                return dict(engine.request("POST", "/v1/completions", json=body).raise_for_status().json()["usage"])
            sampling = {"max_new_tokens": given.tokens, "temperature": 0, **ending}
            body = {"input_ids": ids, "sampling_params": sampling}
            return dict(engine.request("POST", "/generate", json=body).raise_for_status().json()["meta_info"])

        for users in given.users:
            speeds, steps, tokens = [], 0.0, 0.0
            before = vllm_counters(engine) if vllm else None
            for repeat in range(given.repeats + 1):
                part = [prompts[(repeat * users + user) % len(prompts)] for user in range(users)]
                began = time.perf_counter()
                with ThreadPoolExecutor(users) as pool:
                    answers = list(pool.map(answer, part))
                speeds.append(given.tokens / (time.perf_counter() - began))
                steps += sum(one.get("spec_verify_ct") or 0 for one in answers)
                tokens += sum(one["completion_tokens"] for one in answers)
            moved = vllm_moved(engine, before) if vllm else None
            length = moved.acceptance_length if moved and moved.drafts else tokens / steps if steps else None
            middle = statistics.median(speeds[1:])
            found[str(users)] = {"median": middle, "all": speeds[1:], "acceptance_length": length}
            print(f"{users} at once: {middle:.1f} tokens/s/user, acceptance length {length}", flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
