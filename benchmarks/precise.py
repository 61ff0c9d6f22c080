"""What precise routing costs for a request with a body of 400 KB, and what it does to the event loop meanwhile.

python benchmarks/precise.py CHECKPOINT    (a folder with tokenizer.json and a chat template)
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from optistack_routing.kv_index.events import Stored
from optistack_routing.kv_index.index import BlockIndex, chain
from optistack_routing.kv_index.overlap import PreciseOverlap
from optistack_routing.kv_index.session_tokens import SessionTokens
from optistack_routing.router.precise import SWITCH_S

BODY_BYTES = 400_000
REPLICAS = 100
PAGE_TOKENS = 64
TURNS = 30
SOURCE = Path(__file__).parents[1] / "core"


def text() -> str:
    """Python of this repository, as a coding agent would send it."""
    return "\n".join(file.read_text() for file in sorted(SOURCE.rglob("*.py")))


def session() -> list[dict[str, Any]]:
    """Messages of 8 KB each, 400 KB of JSON in all."""
    source, messages, size, at = text(), [], 0, 0
    while size < BODY_BYTES:
        part = (source * 2)[at : at + 8000]
        at += 8000
        messages.append({"role": ("user", "assistant")[len(messages) % 2], "content": part})
        size += len(json.dumps(messages[-1]))
    return messages


def body(messages: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model": "m", "messages": messages}).encode()


def timed(work: Any) -> tuple[Any, float]:
    start = time.thread_time()
    result = work()
    return result, (time.thread_time() - start) * 1e3


def main(checkpoint: Path) -> None:
    sys.setswitchinterval(SWITCH_S)
    messages = session()
    overlap = PreciseOverlap(checkpoint, PAGE_TOKENS)
    _, first_ms = timed(lambda: overlap.predict(body(messages), "s"))
    prompt = overlap._reader.read(body(messages))
    assert prompt is not None
    count = SessionTokens(overlap._reader.tokenizer, PAGE_TOKENS).of(prompt).count
    print(f"body {len(body(messages)):,} bytes, {count:,} tokens, pages of {PAGE_TOKENS}; times of one thread's CPU")
    print(f"first turn, all of it tokenized: {first_ms:.1f} ms")
    turns = []
    for _ in range(TURNS):
        messages = [*messages, {"role": "user", "content": "x = 1\n" * 200}, {"role": "assistant", "content": "ok"}]
        raw = body(messages)
        turns.append(timed(lambda raw=raw: overlap.predict(raw, "s"))[1])
    print(f"next turn, 1.2 KB new: median {statistics.median(turns):.1f} ms, max {max(turns):.1f} ms")
    late, p99 = asyncio.run(lag(None, messages))
    print(f"event loop, idle: a callback is late by {late:.2f} ms, p99 {p99:.2f} ms")
    late, p99 = asyncio.run(lag(overlap, messages))
    print(f"event loop, predictions one after the other: {late:.2f} ms, p99 {p99:.2f} ms")
    overlap.close()
    ids = array("I", range(100_000))
    for page in (16, 64):
        index = BlockIndex(page)
        for number in range(REPLICAS):
            index.join(str(number))
            whole = ids[: len(ids) // page * page]
            event = Stored(list(range(len(whole) // page)), None, whole.tolist(), page, "GPU", True)
            index.apply(str(number), [event])
        keys, hashed_ms = timed(lambda page=page: chain(ids, page))
        _, found_ms = timed(lambda index=index, keys=keys: index.cached_of(keys, len(ids)))
        print(
            f"100,000 tokens, pages of {page}, {REPLICAS} replicas: hash {hashed_ms:.1f} ms, look up {found_ms:.1f} ms"
        )


async def lag(overlap: PreciseOverlap | None, messages: list[dict[str, Any]]) -> tuple[float, float]:
    """How late a callback of the event loop is, in ms, while predictions run one after the other."""
    bodies = [body([*messages, {"role": "user", "content": str(number)}]) for number in range(50)]
    late: list[float] = []
    done = asyncio.Event()

    async def tick() -> None:
        while not done.is_set():
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append((time.perf_counter() - start - 0.001) * 1e3)

    ticking = asyncio.create_task(tick())
    for raw in bodies:
        if overlap is None:
            await asyncio.sleep(0.01)
        else:
            await overlap.of(raw, "s")
    done.set()
    await ticking
    late.sort()
    return statistics.median(late), late[int(0.99 * len(late))]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
