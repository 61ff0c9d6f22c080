"""Checks of cache tiers on a running engine. One JSON object on stdout; exit code 1 where a check fails.

Hit rates are those of the answers' ``usage``. vLLM's counters of the device's prefix cache say more where a tier loads:
each look of the scheduler at a waiting request counts again (vllm 0.26 v1/core/sched/scheduler.py:762 calls
kv_cache_manager.py:274, and :772 or :949 put the request back); its external hits count once (:972). A counter that the
engine does not publish is null, not 0.

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
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Served:
    """``ttft_s`` seconds to the first token; ``cached`` prompt tokens that came from a cache, None where unsaid."""

    ttft_s: float
    cached: int | None
    answer: str


class Engine:
    def __init__(self, url: str, backend: str, model: str) -> None:
        self.url, self.backend, self.model = url, backend, model
        self.endpoint = Endpoint(url)
        self.served = self.endpoint.model()
        self.client = httpx.Client(timeout=600)

    def ask(self, prompt: list[int]) -> Served:
        """Have 8 tokens generated after ``prompt``."""
        body = {"model": self.served, "prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": True}
        body["stream_options"] = {"include_usage": True}
        start, first, cached, answered = time.perf_counter(), None, None, ""
        with self.client.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                if first is None:
                    first = time.perf_counter() - start
                chunk = json.loads(line[6:])
                answered += "".join(choice["text"] for choice in chunk["choices"])
                usage = chunk.get("usage") or {}
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", cached)
        if first is None:
            raise RuntimeError("the engine streamed nothing")
        return Served(first, cached, answered)

    def counters(self) -> dict[str, float | None]:
        metrics = self.endpoint.metrics()
        found = {name: metrics.find(name) for name in COUNTERS[self.backend]}
        return {name: sum(one.value for one in samples) if samples else None for name, samples in found.items()}

    def moved(self, before: dict[str, float | None]) -> dict[str, float | None]:
        """By how much; null for a counter that is still not there. One that appears meanwhile was at 0."""
        after = self.counters()
        return {name: None if value is None else value - (before[name] or 0) for name, value in after.items()}

    def fill(self) -> None:
        """Push everything else off the device."""
        part = FIRST[self.model]
        prompts = [tokens(part, f"fill {time.time_ns()} {number}") for number in range(FILL_TOKENS[self.model] // part)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.ask, prompts))


def tokens(count: int, seed: str) -> list[int]:
    """Random token ids that every vocabulary here has."""
    return random.Random(seed).choices(range(1000, 40_000), k=count)


def load(engine: Engine, levels: list[int]) -> dict[str, Any]:
    """Sessions of growing prompts at each concurrency: TTFT of the turns after the first, and what the caches gave."""
    says = {}
    for level in levels:
        before, start = engine.counters(), time.perf_counter()

        def session(number: int, level: int = level) -> list[Served]:
            prompt, seen = tokens(FIRST[engine.model], f"{level} {number} {time.time_ns()}"), []
            for turn in range(TURNS):
                seen.append(engine.ask(prompt))
                prompt += tokens(GROWTH[engine.model], f"{level} {number} {turn}")
            return seen

        with ThreadPoolExecutor(level) as pool:
            sessions = list(pool.map(session, range(level)))
        turns = [one.ttft_s for seen in sessions for one in seen[1:]]
        cached = [one.cached for seen in sessions for one in seen]
        wall_s, moved = time.perf_counter() - start, engine.moved(before)
        prompts = [FIRST[engine.model] + turn * GROWTH[engine.model] for turn in range(TURNS)]
        says[str(level)] = {
            "ttft_p50_s": median(turns),
            "ttft_p90_s": quantiles(turns, n=10, method="inclusive")[-1] if len(turns) > 1 else turns[0],
            "wall_s": wall_s,
            "hit_rate": None if None in cached else sum(filter(None, cached)) / (level * sum(prompts)),
            "hit_rate_at_best": 1 - prompts[-1] / sum(prompts),
            "moved": moved,
        }
    return says


def turn(engine: Engine, lengths: list[int]) -> dict[str, Any]:
    """TTFT of a prompt that is new, that the device holds, and that was pushed off it.

    One that is not counted goes first, since engines compile kernels at their first requests.
    """
    prompts = {length: tokens(length, f"turn {length} {time.time_ns()}") for length in lengths}
    engine.ask(tokens(lengths[0], f"first {time.time_ns()}"))
    says: dict[str, Any] = {}
    for length, prompt in prompts.items():
        cold, warm = engine.ask(prompt), engine.ask(prompt)
        says[str(length)] = {"cold_s": cold.ttft_s, "device_s": warm.ttft_s}
    engine.fill()
    for length, prompt in prompts.items():
        before = engine.counters()
        below = engine.ask(prompt)
        says[str(length)] |= {"below_s": below.ttft_s, "cached": below.cached, "moved": engine.moved(before)}
    return says


def hits(engine: Engine) -> dict[str, Any]:
    """The same prompt each time: after a restart the first answer comes from storage, or the counters say not. Greedy
    answers on KV from anywhere are those on KV that was computed, whichever start gave them."""
    prompt = tokens(FIRST[engine.model], "the same prompt in every run")
    says: dict[str, Any] = {}
    for when in ("first", "after it was pushed off the device"):
        if says:
            engine.fill()
        before = engine.counters()
        served = engine.ask(prompt)
        says[when] = {"cached": served.cached, "answer": served.answer, "moved": engine.moved(before)}
    return says


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
