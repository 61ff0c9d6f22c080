"""An engine's side of KV events over real sockets, in the dialects of the two engines."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

END = (-1).to_bytes(8, "big", signed=True)


def until(true: Callable[[], object], *, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"still not true after {timeout_s} s"
        time.sleep(0.01)


def stored(
    hashes: list[Any], tokens: list[Any], *, parent: Any = None, page: int = 4, dialect: str = "vllm", **more: Any
) -> Any:
    if dialect == "sglang-0.5.17":
        return ["BlockStored", hashes, parent, tokens, page, None, "GPU"]
    fields = {"block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": page}
    return {"type": "BlockStored", **fields, "lora_id": None, "medium": "GPU", **more}


def removed(hashes: list[Any], *, dialect: str = "vllm", **more: Any) -> Any:
    if dialect == "sglang-0.5.17":
        return ["BlockRemoved", hashes, "GPU"]
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", **more}


def cleared(*, dialect: str = "vllm") -> Any:
    return ["AllBlocksCleared"] if dialect == "sglang-0.5.17" else {"type": "AllBlocksCleared"}


def batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode([time.time(), list(events), 0])


class Publisher:
    """Numbers, publishes and replays messages. ``lose`` publishes nothing but keeps a message for a replay.

    ``topic``  whether a replayed message has the topic's frame (vLLM, SGLang 0.5.23) or not (SGLang before)
    """

    def __init__(self, folder: Path, *, topic: bool = True, kept: int = 1000, replays: bool = True) -> None:
        self.events, self.replay = f"ipc://{folder}/e", f"ipc://{folder}/r"
        self._topic = [b""] if topic else []
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self._next = 0
        self._lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)  # as PUB, and tells of subscribers
        self._pub.bind(self.events)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(self.replay)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve) if replays else None
        if self._thread:
            self._thread.start()

    def wait_for_subscriber(self) -> None:
        assert self._pub.poll(10_000)
        self._pub.recv()

    def publish(self, *events: Any) -> None:
        self.lose(*events)
        number, payload = self._kept[-1]
        self.send(number, payload)

    def send(self, number: int, payload: bytes) -> None:
        self._pub.send_multipart([b"", number.to_bytes(8, "big"), payload])

    def lose(self, *events: Any) -> None:
        with self._lock:
            self._kept.append((self._next, batch(*events)))
            self._next += 1

    def close(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
        for socket in (self._pub, self._router):
            socket.close(linger=0)
        self._context.term()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self._router.poll(10):
                continue
            client, _, start = self._router.recv_multipart()
            with self._lock:
                kept = list(self._kept)
            for number, payload in kept:
                if number >= int.from_bytes(start, "big"):
                    self._router.send_multipart([client, b"", *self._topic, number.to_bytes(8, "big"), payload])
            self._router.send_multipart([client, b"", *self._topic, END, b""])
