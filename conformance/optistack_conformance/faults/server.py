"""The toy model over HTTP: the routes that the suite uses, in vLLM's dialect."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.dialect import Answerer
from optistack_conformance.faults.listening import Listening
from optistack_conformance.faults.payloads import BadRequestError

METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} {running}
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{{engine="0"}} {prompted}
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}
# TYPE vllm:spec_decode_num_accepted_tokens counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}
# TYPE vllm:external_prefix_cache_hits counter
vllm:external_prefix_cache_hits_total{{engine="0"}} {tier}
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="{page}",cache_dtype="auto",kv_cache_size_tokens="{tokens}"}} 1
"""


class FaultyServer(Listening):
    """A server with one ``fault`` on a free port of the loopback. Use as a context manager; ``url`` is where it is.

    ``seed`` decides rounding and where faults with a rate strike; ``skill`` the share of tasks solved. The cache holds
    ``device_pages``; what is evicted goes to a host tier, where there is one, without end.
    """

    def __init__(
        self,
        fault: Fault = Fault.NONE,
        *,
        seed: int = 0,
        skill: float = 0.9,
        device_pages: int = 800,
        host_tier: bool = True,
    ) -> None:
        self.answerer = Answerer(fault, seed=seed, skill=skill, device_pages=device_pages, host_tier=host_tier)
        super().__init__(_Handler, answerer=self.answerer)


class _Handler(BaseHTTPRequestHandler):
    answerer: Answerer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        answerer = self.answerer
        if self.path == "/metrics":
            self._send(200, METRICS.format(**answerer.numbers()).encode(), "text/plain")
        elif self.path == "/version":
            self._json(200, {"version": "0.0.0+toy"})
        elif self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "toy", "max_model_len": answerer.max_tokens}]})
        else:
            self._json(404, {"error": {"message": f"no route {self.path}"}})

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
            if not isinstance(body, dict):
                raise BadRequestError("the body is no object")
            if self.path == "/tokenize":
                self._json(200, {"count": len(self.answerer.chat_ids(body["messages"]))})
            elif body.get("stream"):
                self._stream(body)
            else:
                self._json(200, self.answerer.whole(self.path, body))
        except (BadRequestError, ValueError) as error:
            self._json(getattr(error, "status", 400), {"error": {"message": str(error), "type": "BadRequestError"}})

    def _stream(self, body: dict[str, Any]) -> None:
        events = self.answerer.stream(self.path, body)
        first = next(events)  # a bad request is refused before the stream begins
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(BrokenPipeError, ConnectionResetError), contextlib.closing(events):
            for event in self._chain(first, events):
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")

    @staticmethod
    def _chain(first: dict[str, Any], rest: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        yield first
        yield from rest

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)
