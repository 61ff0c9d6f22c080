"""A toy server that speaks SGLang's ``/generate`` and gives no log probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from optistack_conformance.client import COMPLETIONS
from optistack_conformance.faults.listening import Listening
from optistack_conformance.faults.server import FaultyServer

INFO = {"version": "0.5.17", "page_size": 1, "speculative_algorithm": "DFLASH", "max_total_num_tokens": 100_000}


class SglangFront(Listening):
    """In front of a healthy ``toy``; whoever asks for log probabilities is answered ``status`` and ``message``.
    ``write`` changes the tokens of a generation."""

    def __init__(
        self,
        toy: FaultyServer,
        status: int,
        message: str,
        write: Callable[[list[int]], list[int]] = lambda ids: ids,
    ) -> None:
        self.toy, self.refusal, self.write = toy, (status, {"error": {"message": message}}), write
        super().__init__(_Handler, front=self)

    def generate(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if body.get("return_logprob"):
            return self.refusal
        sampling = body["sampling_params"]
        asked = {"prompt": body.get("input_ids") or body["text"], "max_tokens": sampling["max_new_tokens"]}
        asked |= {"model": "toy", "temperature": 0.0, "ignore_eos": True, "return_token_ids": True}
        ids = self.toy.answerer.whole(COMPLETIONS, asked)["choices"][0]["token_ids"]
        return 200, {"text": "", "output_ids": self.write(ids), "meta_info": {}}


class _Handler(BaseHTTPRequestHandler):
    front: SglangFront
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        pages = {
            "/v1/models": {"object": "list", "data": [{"id": "toy", "max_model_len": 4096}]},
            "/server_info": INFO,
        }
        self._send(200, pages[self.path]) if self.path in pages else self._send(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/generate":
            self._send(*self.front.generate(body))
        else:
            self._send(200, self.front.toy.answerer.whole(self.path, body))

    def _send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
