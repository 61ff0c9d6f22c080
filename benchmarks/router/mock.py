"""Mock engines for the benchmark: one process, several ports, as little of Python for each request as can be.

    python mock.py PORT [PORT ...]

Answers what the routers ask of an engine. ``POST /v1/chat/completions`` looks for ``"stream":true``, ``max_tokens``
(chunks to send) and ``seed`` (chunks a second; 0 sends them at once) in the last 300 bytes of the body, or in all
of it. A
stream's chunk carries the time at which it was written, in nanoseconds.
"""

from __future__ import annotations

import asyncio
import re
import sys
from time import monotonic_ns

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
_RATE = re.compile(rb'"seed":\s*([0-9.]+)')

_USAGE = (
    b'"usage":{"prompt_tokens":100000,"completion_tokens":1,"total_tokens":100001,'
    b'"prompt_tokens_details":{"cached_tokens":98000}}'
)
_ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"ok"},"finish_reason":"stop"}],' + _USAGE + b"}"
)
_PAGES = {
    b"/v1/models": b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"mock"}]}',
    b"/get_model_info": b'{"model_path":"m","served_model_name":"m","is_generation":true}',
    b"/model_info": b'{"model_path":"m","served_model_name":"m","is_generation":true}',
    b"/server_info": b'{"model_path":"m","served_model_name":"m","tp_size":1,"dp_size":1,"version":"0.0.0"}',
    b"/get_server_info": b'{"model_path":"m","served_model_name":"m","tp_size":1,"dp_size":1,"version":"0.0.0"}',
    b"/get_load": b'[{"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}]',
    b"/metrics": b"vllm:kv_cache_usage_perc 0.5\n",
}
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    b'{"content":" word"},"logprobs":null,"finish_reason":null}],"t":%020d}\n\n'
)
_CHUNK_BYTES = len(_CHUNK % 0)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_END = _framed(b'data: {"choices":[],' + _USAGE + b"}\n\n") + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Engine(asyncio.Protocol):
    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._missing = 0
        self._head = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._missing > 0:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing <= 0:
                self._answer()
            return
        if self._missing < 0:  # chunked: nobody here sends the end in two pieces
            self._parts.append(data)
            if data.endswith(b"0\r\n\r\n"):
                self._missing = 0
                self._answer()
            return
        data = self._head + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._head = data
            return
        self._head, rest = data[: end + 4], data[end + 4 :]
        length = _LENGTH.search(self._head)
        self._parts = [rest]
        if length is not None:
            self._missing = int(length[1]) - len(rest)
            if self._missing > 0:
                return
        elif _CHUNKED.search(self._head) and not rest.endswith(b"0\r\n\r\n"):
            self._missing = -1
            return
        self._answer()

    def _answer(self) -> None:
        head, self._head = self._head, b""
        path = head.split(b" ", 2)[1].split(b"?")[0] if head.count(b" ") > 1 else b"/"
        if not head.startswith(b"POST /v1/"):
            page = _PAGES.get(path, b"{}")
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page)
            )
            return
        body = self._parts[-1] if len(self._parts[-1]) >= 300 else b"".join(self._parts[-2:])
        tail = body[-300:] if len(body) > 600 else body
        tokens = _TOKENS.search(tail)
        if tokens is None or b'"stream"' not in tail:  # smg writes the body anew, with its fields in another order
            tail = b"".join(self._parts)
            tokens = _TOKENS.search(tail)
        self._parts = []
        chunks = int(tokens[1]) if tokens else 1
        if b'"stream":true' not in tail and b'"stream": true' not in tail:
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(_ANSWER), _ANSWER)
            )
            return
        rate = _RATE.search(tail)
        every_s = 1 / float(rate[1]) if rate and float(rate[1]) > 0 else 0.0
        self._transport.write(_STREAM)
        if not every_s:
            self._transport.write(b"".join(_framed(_CHUNK % monotonic_ns()) for _ in range(chunks)) + _END)
            return
        loop = asyncio.get_running_loop()
        self._tick(loop, chunks, every_s, loop.time() + every_s)

    def _tick(self, loop: asyncio.AbstractEventLoop, left: int, every_s: float, due_s: float) -> None:
        if not left:
            self._transport.write(_END)
            return
        self._transport.write(b"%x\r\n%b\r\n" % (_CHUNK_BYTES, _CHUNK % monotonic_ns()))
        self._timer = loop.call_at(due_s, self._tick, loop, left - 1, every_s, due_s + every_s)


async def main(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(Engine, "127.0.0.1", port, backlog=2048)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main([int(port) for port in sys.argv[1:]]))
