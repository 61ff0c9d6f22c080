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
FIRST = {"kimi-slice": 20_000, "smollm2": 1000}
GROWTH = {"kimi-slice": 16_000, "smollm2": 500}
TURNS = 6
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
        for number in range(FILL_TOKENS[self.model] // FIRST[self.model]):
            self.ttft_s(tokens(FIRST[self.model], f"fill {time.time_ns()} {number}"))


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
        says[str(level)] = {
            "ttft_p50_s": median(turns),
            "ttft_p90_s": quantiles(turns, n=10)[-1],
            "wall_s": time.perf_counter() - start,
            "moved": engine.moved(before),
        }
    return says


def turn(engine: Engine, lengths: list[int]) -> dict[str, Any]:
    """TTFT of a prompt that is new, that the device holds, and that was pushed off it."""
    says = {}
    for length in lengths:
        prompt = tokens(length, f"turn {length} {time.time_ns()}")
        cold, warm = engine.ttft_s(prompt), engine.ttft_s(prompt)
        engine.fill()
        before = engine.counters()
        below = engine.ttft_s(prompt)
        says[str(length)] = {"cold_s": cold, "device_s": warm, "below_s": below, "moved": engine.moved(before)}
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
