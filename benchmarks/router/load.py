"""The load client of the benchmark: a process of its own, raw protocols on uvloop.

    python load.py JSON

``JSON`` holds fields of :class:`Run`: port, kind ("request" or "stream"), concurrency, count (of all requests), and
more. Prints one line of JSON: requests, errors, chunks, wall_s, ttfb_ms (sorted), and lag_ms, the chunks' time from the
mock to here (median and 99th percentile) in ten slices of the run.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import dataclass, field
from time import monotonic, monotonic_ns
from typing import Any

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_STAMP = re.compile(rb'"t":(\d{20})')
SLICES = 10


@dataclass
class Run:
    port: int
    kind: str
    concurrency: int
    count: int
    body_bytes: int = 2000
    chunks: int = 100
    rate: float = 0.0
    sessions: int = 64
    spread_s: float = 0.0
    header: str = "X-Session-Id"
    left: int = 0
    errors: int = 0
    first_error: str = ""
    events: int = 0
    ttfb_ms: list[float] = field(default_factory=list)
    lags: list[list[float]] = field(default_factory=lambda: [[] for _ in range(SLICES)])
    done: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        stream = "true" if self.kind == "stream" else "false"
        tail = f',"max_tokens":{self.chunks},"seed":{self.rate:.0f},"stream":{stream}}}'
        head = '{"model":"m","messages":[{"role":"user","content":"'
        text = "The quick brown fox jumps over the lazy dog. " * (self.body_bytes // 45 + 1)
        fill = max(1, self.body_bytes - len(head) - len(tail) - 3)
        self.body = (head + text[:fill] + '"}]' + tail).encode()
        self.left = self.count
        self.heads = [
            (
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
                "User-Agent: load\r\nAccept: */*\r\n"
                f"{self.header}: session-{n}\r\nX-SMG-Routing-Key: session-{n}\r\nAuthorization: Bearer none\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
            ).encode()
            for n in range(self.sessions)
        ]


class Client(asyncio.Protocol):
    def __init__(self, run: Run, number: int) -> None:
        self._run = run
        self._number = number
        self._asked = False
        self._waiting = False
        self._data = b""
        self._begun = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.next()

    def next(self) -> None:
        run = self._run
        if run.left <= 0:
            self._transport.close()
            return
        run.left -= 1
        self._number += run.concurrency
        self._asked = self._waiting = True
        self._data = b""
        self._chunks = 0
        self._begun = monotonic()
        self._transport.writelines([run.heads[self._number % run.sessions], run.body])

    def data_received(self, data: bytes) -> None:
        run = self._run
        if self._waiting:
            self._waiting = False
            run.ttfb_ms.append(1000 * (monotonic() - self._begun))
            if not data.startswith(b"HTTP/1.1 200"):
                run.errors += 1
                run.first_error = run.first_error or data[:500].decode("latin-1")
                run.over.set()
        if run.kind == "stream":
            stamps = _STAMP.findall(data)
            if stamps:
                self._chunks += len(stamps)
                run.events += len(stamps)
                if run.rate:
                    slice_ = min(SLICES - 1, self._chunks * SLICES // (run.chunks + 1))
                    run.lags[slice_].append((monotonic_ns() - int(stamps[-1])) / 1e6)
            self._data = (self._data + data)[-40:]
            if self._data.endswith(b"0\r\n\r\n"):
                self._finished()
            return
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._data[: end + 4])
        if length is not None:
            if len(self._data) - end - 4 >= int(length[1]):
                self._finished()
        elif self._data.endswith(b"0\r\n\r\n"):
            self._finished()

    def _finished(self) -> None:
        self._asked = False
        self._run.done += 1
        if self._run.done == self._run.count:
            self._run.over.set()
        self.next()

    def connection_lost(self, error: Exception | None) -> None:
        if self._asked:
            self._run.errors += 1
            self._run.first_error = self._run.first_error or f"connection lost: {error}"
            self._run.over.set()


async def main(options: dict[str, Any]) -> None:
    run = Run(**options)
    loop = asyncio.get_running_loop()
    begun = monotonic()
    for number in range(min(run.concurrency, run.count)):
        await loop.create_connection(lambda number=number: Client(run, number), "127.0.0.1", run.port)
        if run.spread_s:
            await asyncio.sleep(run.spread_s / run.concurrency)
    await asyncio.wait_for(run.over.wait(), 300)
    run.ttfb_ms.sort()
    step = max(1, len(run.ttfb_ms) // 1000)
    print(
        json.dumps(
            {
                "requests": run.done,
                "errors": run.errors,
                "first_error": run.first_error,
                "chunks": run.events,
                "wall_s": monotonic() - begun,
                "ttfb_ms": run.ttfb_ms[::step],
                "lag_ms": [_quantiles(sorted(lags)) for lags in run.lags] if run.rate else None,
            }
        )
    )


def _quantiles(values: list[float]) -> list[float] | None:
    if not values:
        return None
    return [round(values[min(len(values) - 1, int(share * len(values)))], 3) for share in (0.5, 0.99)]


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
