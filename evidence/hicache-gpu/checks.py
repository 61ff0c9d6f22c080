"""Checks of cache tiers on a running engine. One JSON object on stdout; exit code 1 where a check fails.

python evidence/hicache-gpu/checks.py URL sglang|vllm MODEL STACK sizes
python evidence/hicache-gpu/checks.py URL sglang|vllm MODEL STACK load CONCURRENCY...
python evidence/hicache-gpu/checks.py URL sglang|vllm MODEL STACK turn LENGTH...
python evidence/hicache-gpu/checks.py URL sglang|vllm MODEL STACK hits-by-tier
python evidence/hicache-gpu/checks.py URL sglang|vllm MODEL STACK conformance
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from typing import Any

import httpx

from optistack.verify.endpoint import Endpoint

COUNTERS = {
    "sglang": (
        "sglang:prompt_tokens_total",
        "sglang:cached_tokens_total",
        "sglang:load_back_tokens_total",
        "sglang:prefetched_tokens_total",
        "sglang:hicache_backup_tokens_total",
        "sglang:backuped_tokens_total",
    ),
    "vllm": (
        "vllm:prompt_tokens_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:external_prefix_cache_hits_total",
        "vllm:kv_offload_load_bytes_total",
        "vllm:kv_offload_store_bytes_total",
        "vllm:kv_offload_tiering_read_bytes_total",
        "vllm:kv_offload_tiering_write_bytes_total",
    ),
}
FIRST = {"kimi-slice": 10_000, "smollm2": 1000}
GROWTH = {"kimi-slice": 10_000, "smollm2": 500}
TURNS = 4
FILL_TOKENS = {"kimi-slice": 400_000, "smollm2": 40_000}
"""More than the device's KV of the lists in benchmarks/configurations holds."""


class Engine:
    def __init__(self, url: str, backend: str, model: str) -> None:
        self.url, self.backend, self.model = url, backend, model
        self.endpoint = Endpoint(url)
        self.served = self.endpoint.model()
        self.client = httpx.Client(timeout=600)

    def ttft_s(self, prompt: list[int]) -> float:
        """Seconds to the first token."""
        body = {"model": self.served, "prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": True}
        start, first = time.perf_counter(), None
        with self.client.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith("data: {") and first is None:
                    first = time.perf_counter() - start
        if first is None:
            raise RuntimeError("the engine streamed nothing")
        return first

    def counters(self) -> dict[str, float]:
        metrics = self.endpoint.metrics()
        return {name: sum(one.value for one in metrics.find(name)) for name in COUNTERS[self.backend]}

    def moved(self, before: dict[str, float]) -> dict[str, float]:
        return {name: value - before[name] for name, value in self.counters().items()}

    def fill(self) -> None:
        """Push everything else off the device."""
        part = FIRST[self.model]
        prompts = [tokens(part, f"fill {time.time_ns()} {number}") for number in range(FILL_TOKENS[self.model] // part)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.ttft_s, prompts))

    def hit_tokens(self, moved: dict[str, float]) -> float:
        """Prompt tokens that no cache had to do without: of the device, and of what is below it."""
        if self.backend == "sglang":
            return moved["sglang:cached_tokens_total"]
        return moved["vllm:prefix_cache_hits_total"] + moved["vllm:external_prefix_cache_hits_total"]


def tokens(count: int, seed: str) -> list[int]:
    """Random token ids that every vocabulary here has."""
    return random.Random(seed).choices(range(1000, 40_000), k=count)


def load(engine: Engine, levels: list[int]) -> dict[str, Any]:
    """Sessions of growing prompts at each concurrency: TTFT of the turns after the first, and what the caches gave."""
    says = {}
    for level in levels:
        before, start = engine.counters(), time.perf_counter()

        def session(number: int, level: int = level) -> list[float]:
            prompt, seen = tokens(FIRST[engine.model], f"{level} {number} {time.time_ns()}"), []
            for turn in range(TURNS):
                seen.append(engine.ttft_s(prompt))
                prompt += tokens(GROWTH[engine.model], f"{level} {number} {turn}")
            return seen

        with ThreadPoolExecutor(level) as pool:
            turns = [one for seen in pool.map(session, range(level)) for one in seen[1:]]
        wall_s, moved = time.perf_counter() - start, engine.moved(before)
        prompts = [FIRST[engine.model] + turn * GROWTH[engine.model] for turn in range(TURNS)]
        says[str(level)] = {
            "ttft_p50_s": median(turns),
            "ttft_p90_s": quantiles(turns, n=10, method="inclusive")[-1] if len(turns) > 1 else turns[0],
            "wall_s": wall_s,
            "hit_rate": engine.hit_tokens(moved) / (level * sum(prompts)),
            "hit_rate_at_best": 1 - prompts[-1] / sum(prompts),
            "moved": moved,
        }
    return says


def turn(engine: Engine, lengths: list[int]) -> dict[str, Any]:
    """TTFT of a prompt that is new, that the device holds, and that was pushed off it.

    One that is not counted goes first, since engines compile kernels at their first requests.
    """
    prompts = {length: tokens(length, f"turn {length} {time.time_ns()}") for length in lengths}
    engine.ttft_s(tokens(lengths[0], f"first {time.time_ns()}"))
    says: dict[str, Any] = {}
    for length, prompt in prompts.items():
        cold, warm = engine.ttft_s(prompt), engine.ttft_s(prompt)
        says[str(length)] = {"cold_s": cold, "device_s": warm}
    engine.fill()
    for length, prompt in prompts.items():
        before = engine.counters()
        says[str(length)] |= {"below_s": engine.ttft_s(prompt), "moved": engine.moved(before)}
    return says


def hits(engine: Engine) -> dict[str, Any]:
    """The same prompt each time: after a restart the first answer comes from storage, or the counters say not."""
    prompt = tokens(FIRST[engine.model], "the same prompt in every run")
    before = engine.counters()
    engine.ttft_s(prompt)
    first = engine.moved(before)
    engine.fill()
    before = engine.counters()
    engine.ttft_s(prompt)
    return {"first": first, "after it was pushed off the device": engine.moved(before)}


def main() -> int:
    url, backend, model, stack, check, *words = sys.argv[1:]
    engine = Engine(url, backend, model)
    numbers = [int(word.replace("k", "000")) for word in words]
    if check == "conformance":
        command = ["optistack", "conformance", "--endpoint", url, "--tier", "1", "--expect-tier", "--json"]
        return subprocess.run(command, check=False).returncode
    if check == "sizes":
        command = ["optistack", "verify", "--stack", stack, "--endpoint", url, "--json"]
        return subprocess.run(command, check=False).returncode
    says = {"load": load, "turn": turn}[check](engine, numbers) if numbers else hits(engine)
    print(json.dumps({check: says}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
