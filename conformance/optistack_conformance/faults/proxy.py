"""A proxy that is wrong on purpose, in front of any server: real engines are tested behind it.

What an engine does inside cannot be changed from here, but what a client sees of most faults can: a token that is
another one, a log probability that is off, an answer that belongs to another request.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx

from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.listening import Listening
from optistack_conformance.faults.tamper import Tamper


class FaultyProxy(Listening):
    """Passes everything on to ``upstream`` and does one ``fault`` to it. Use as a context manager; ``url`` is where.

    ``seed`` decides where faults with a rate strike. ``tamper`` does something else, and ``hidden`` paths answer 404.
    """

    def __init__(
        self,
        upstream: str,
        fault: Fault = Fault.NONE,
        *,
        seed: int = 0,
        tamper: Tamper | None = None,
        hidden: Collection[str] = (),
    ) -> None:
        self.hidden = frozenset(hidden)
        # A connection for each request: one that is kept alive may be closed by the engine just as it is used.
        each = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(base_url=upstream, timeout=600.0, trust_env=False, limits=each)
        self.tamper = tamper or Tamper(fault, seed=seed)
        super().__init__(_Handler, proxy=self)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.client.close()


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        if self.path in self.proxy.hidden:
            self._send(404, b"{}", "application/json")
            return
        self._answer(self.proxy.client.get(self.path))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path in self.proxy.hidden:
            self._send(404, b"{}", "application/json")
            return
        try:
            body = json.loads(content)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            headers = {"content-type": self.headers.get("content-type", "application/json")}
            self._answer(self.proxy.client.post(self.path, content=content, headers=headers))
            return
        tamper = self.proxy.tamper
        sent = tamper.request(self.path, body)
        if body.get("stream"):
            self._stream(body, sent)
            return
        answer = self.proxy.client.post(self.path, json=sent)
        if answer.status_code != 200:
            self._answer(answer)
            return
        self._send(200, json.dumps(tamper.answer(self.path, body, answer.json())).encode(), "application/json")

    def _stream(self, body: dict[str, Any], sent: dict[str, Any]) -> None:
        with self.proxy.client.stream("POST", self.path, json=sent) as answer:
            if answer.status_code != 200:
                answer.read()
                self._answer(answer)
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
            lines = (line[5:].strip() for line in answer.iter_lines() if line.startswith("data:"))
            try:
                for event in self.proxy.tamper.events(self.path, body, self._events(lines)):
                    self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                self.wfile.write(b"data: [DONE]\n\n")
            except (BrokenPipeError, ConnectionResetError):
                if self.proxy.tamper.fault is Fault.LEAKED_STREAM:
                    # The client has gone and the engine works on, until the proxy itself goes.
                    with contextlib.suppress(httpx.TransportError):
                        for _ in lines:
                            pass

    @staticmethod
    def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
        for line in lines:
            if line == "[DONE]":
                return
            yield json.loads(line)

    def _answer(self, answer: httpx.Response) -> None:
        self._send(answer.status_code, answer.content, answer.headers.get("content-type", "text/plain"))

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(content)
