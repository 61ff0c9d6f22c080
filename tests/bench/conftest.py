"""A scripted engine: streams tokens at a rate, has a prefix cache and counters in vLLM's dialect, fails on demand."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from optistack.cli.run import run

METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0"}} 0
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{{engine="0"}} {queries}
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{{engine="0"}} {hits}
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}
# TYPE vllm:spec_decode_num_accepted_tokens counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}
"""


@dataclass
class Script:
    """How the engine behaves. ``token_s`` is the time of a token, ``first_s`` that of a prompt, ``metrics_s`` that of
    the metrics once something was asked; ``fail`` the status of the requests with these numbers (from 0); ``dies_at``
    the request at which the server goes away for good; ``cut_at`` the one whose stream ends without a word; ``lie`` is
    added to what usage says of the cache; ``usage`` stands in the place of it all (a function of prompt's and answer's
    tokens makes it), and False sends none; ``says`` are
    the deltas of a chat's answer, behind one with a role alone; ``tokenizes`` None answers without any token, and a
    text with another kind of JSON; ``lists`` False lists no model; ``error_event`` is all that a stream has; ``noise``
    is an event before every answer."""

    token_s: float = 0.0
    first_s: float = 0.0
    context: int | None = 2048
    fail: dict[int, int] = field(default_factory=dict)
    dies_at: int | None = None
    cut_at: int | None = None
    tokenizes: bool | str | None = True
    caches: bool = True
    lists: bool = True
    metrics_s: float = 0.0
    lie: int = 0
    usage: object = None
    error_event: bool = False
    noise: bytes = b""
    says: list[dict[str, Any]] = field(default_factory=lambda: [{"content": "x"}] * 3)


class Engine:
    """On a free port of the loopback; ``url`` is where. ``asked`` are the bodies, ``sessions`` the session headers."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.lock = threading.Lock()
        self.asked: list[dict[str, Any]] = []
        self.sessions: list[str | None] = []
        self.logins: set[str | None] = set()
        self.pages: set[tuple[int, int]] = set()
        self.counts = {"running": 0, "queries": 0, "hits": 0, "drafts": 0, "accepted": 0}
        handler = type("Handler", (_Handler,), {"engine": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Engine:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def look_up(self, prompt: list[int]) -> int:
        """Tokens of the longest known head, which is known from now on whole."""
        with self.lock:
            known, open_head = 0, True
            parent = 0
            for at in range(len(prompt)):
                parent = hash((parent, prompt[at]))
                if open_head and (at, parent) in self.pages:
                    known = at + 1
                else:
                    open_head = False
                    self.pages.add((at, parent))
            known = known if self.script.caches else 0
            self.counts["queries"] += len(prompt)
            self.counts["hits"] += known
            return known


class _Handler(BaseHTTPRequestHandler):
    engine: Engine
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            time.sleep(self.engine.script.metrics_s if self.engine.asked else 0.0)
            self._send(200, METRICS.format(**self.engine.counts).encode(), "text/plain")
        elif self.path == "/version":
            self._json(200, {"version": "0.0.0+scripted"})
        elif self.path == "/v1/models":
            length = self.engine.script.context
            model = {"id": "toy", **({"max_model_len": length} if length else {})}
            self._json(200, {"data": [model] if self.engine.script.lists else []})
        else:
            self._json(404, {})

    def do_POST(self) -> None:
        engine, script = self.engine, self.engine.script
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/tokenize":
            if script.tokenizes is False:
                self._json(404, {})
                return
            if script.tokenizes is not True:
                self._json(200, {"tokens": []} if script.tokenizes is None else {"answer": script.tokenizes})
                return
            self._json(200, {"tokens": [500 + ord(letter) % 400 for letter in body["prompt"]]})
            return
        with engine.lock:
            number = len(engine.asked)
            engine.asked.append(body)
            engine.logins.add(self.headers.get("authorization"))
            engine.sessions.append(self.headers.get("x-session-id"))
            engine.counts["running"] += 1
        try:
            if script.dies_at is not None and number >= script.dies_at:
                engine.server.shutdown()
                engine.server.socket.close()
                self.close_connection = True
                self.connection.close()
            elif script.error_event:
                self._send(200, b'data: {"error": {"message": "out of memory"}}\n\n', "text/event-stream")
            elif number in script.fail:
                self._json(script.fail[number], {"error": {"message": "scripted"}})
            else:
                self._stream(body, cut=script.cut_at == number)
        finally:
            with engine.lock:
                engine.counts["running"] -= 1

    def _stream(self, body: dict[str, Any], *, cut: bool) -> None:
        script, tokens = self.engine.script, body["max_tokens"]
        choices: list[dict[str, Any]] = [{"index": 0, "text": "x"}] * tokens
        if "messages" in body:
            deltas = [{"role": "assistant", "content": ""}, *script.says[:tokens]]
            choices = [{"index": 0, "delta": delta} for delta in deltas]
            tokens = len(deltas) - 1
        prompt = body["prompt"] if "prompt" in body else _rendered(body["messages"])
        cached = self.engine.look_up(prompt)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        time.sleep(script.first_s)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if script.noise:
                self._chunk(b"data: %b\n\n" % script.noise)
            for choice in choices:
                self._event({"choices": [choice], "usage": None})
                time.sleep(script.token_s)
            if cut:
                self.close_connection = True
                self.connection.close()
                return
            with self.engine.lock:
                self.engine.counts["drafts"] += tokens
                self.engine.counts["accepted"] += tokens
            details = {"cached_tokens": cached + script.lie}
            usage = {"prompt_tokens": len(prompt), "completion_tokens": tokens, "prompt_tokens_details": details}
            if script.usage is not False:
                said = script.usage(len(prompt), tokens) if callable(script.usage) else script.usage or usage
                self._event({"choices": [], "usage": said})
            self._chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)


def _rendered(messages: list[dict[str, Any]]) -> list[int]:
    """A chat template of sorts: two tokens for a role, one for a character."""
    text = "".join(f"<{one['role'][0]}{one['content']}" for one in messages)
    return [ord(letter) for letter in text]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(Script()) as running:
        yield running


FAST = ["--domain", "made", "--think-limit", "0", "--turns", "2", "--sessions", "4", "--warmup", "0"]


def bench(engine: Engine, *words: str) -> int:
    return run(["bench", *words, "--endpoint", engine.url, *FAST])


def result_of(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded
