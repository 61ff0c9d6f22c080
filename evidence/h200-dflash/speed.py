"""Tokens/s/user and acceptance of a running vLLM or SGLang, with a draft or without.

    python speed.py --endpoint URL --prompts SHARD.safetensors [--users 1 4 16] [--no-forced] [--out RESULT.json]

The prompts of a shard are answered greedily, as token ids, by so many users at once, each asking the next prompt as
soon as its last answer is complete: --answers of them (at least eight a user), of up to --tokens tokens, after a round
that is not counted. Tokens/s/user is the tokens of all answers over the seconds of all requests, prefill and HTTP
included; the interval is of bootstrapped answers, 95%. Measured twice: with answers that end where the model ends
them, as users get them, and with answers that are made to go on to --tokens ("forced"), where a draft that learned
from answers is in strange land. Acceptance is what the engine counts: SGLang in every answer, vLLM in its metrics.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from optistack.verify.endpoint import Endpoint
from optistack_dflash.drafter.shards import read_shard
from optistack_dflash.probe_counters import VLLM_COUNTERS, vllm_counters, vllm_moved


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--users", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--answers", type=int, default=40)
    parser.add_argument("--forced", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    prompts = [list(one.ids[: one.prompt_tokens]) for one in read_shard(given.prompts)[1]]
    found: dict[str, Any] = {}
    with Endpoint(given.endpoint) as engine:
        ask = Asker(engine, given.tokens)
        for forced in (False, True) if given.forced else (False,):
            for users in given.users:
                count = max(given.answers, 8 * users)
                ask.round(prompts[-users:], users, forced=forced)
                says = ask.round([prompts[at % len(prompts)] for at in range(count)], users, forced=forced)
                name = f"{users} forced" if forced else str(users)
                found[name] = says
                print(
                    f"{users} at once{', forced' if forced else ''}: {says['tokens_s_user']:.1f} tokens/s/user "
                    f"[{says['low']:.1f}, {says['high']:.1f}], acceptance length {says['acceptance_length']}",
                    flush=True,
                )
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


class Asker:
    def __init__(self, engine: Endpoint, tokens: int) -> None:
        self.engine, self.tokens = engine, tokens
        self.vllm = engine.get_json("/version") is not None
        self.model = engine.model() if self.vllm else ""
        # Without a draft there is nothing to wait for after each round.
        self.drafts = self.vllm and engine.metrics().has(VLLM_COUNTERS[0])

    def answer(self, ids: list[int], *, forced: bool) -> tuple[float, int, float]:
        """Seconds, tokens, and SGLang's verify steps."""
        began = time.perf_counter()
        if self.vllm:
            body = {"model": self.model, "prompt": ids, "max_tokens": self.tokens, "temperature": 0}
            body["ignore_eos"] = forced
            answer = self.engine.request("POST", "/v1/completions", json=body)
            said = answer.raise_for_status().json()["usage"]
        else:
            sampling = {"max_new_tokens": self.tokens, "temperature": 0, "ignore_eos": forced}
            answer = self.engine.request("POST", "/generate", json={"input_ids": ids, "sampling_params": sampling})
            said = answer.raise_for_status().json()["meta_info"]
        return time.perf_counter() - began, said["completion_tokens"], said.get("spec_verify_ct") or 0

    def round(self, prompts: list[list[int]], users: int, *, forced: bool) -> dict[str, Any]:
        before = vllm_counters(self.engine) if self.drafts else None
        with ThreadPoolExecutor(users) as pool:
            answers = list(pool.map(lambda ids: self.answer(ids, forced=forced), prompts))
        moved = vllm_moved(self.engine, before) if self.drafts else None
        tokens, steps = sum(one[1] for one in answers), sum(one[2] for one in answers)
        draws = Random(0)
        again = sorted(rate(draws.choices(answers, k=len(answers))) for _ in range(1000))
        return {
            "tokens_s_user": rate(answers),
            "low": again[25],
            "high": again[974],
            "answers": len(answers),
            "tokens": tokens,
            "acceptance_length": moved.acceptance_length
            if moved and moved.drafts
            else tokens / steps
            if steps
            else None,
        }


def rate(answers: list[tuple[float, int, float]]) -> float:
    return sum(one[1] for one in answers) / sum(one[0] for one in answers)


if __name__ == "__main__":
    main()
