"""``optistack verify`` against another engine than the stack's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Optistack = Callable[..., Any]


@pytest.mark.parametrize("page", [{}, {"data": []}, {"data": {"m": 1}}, {"data": "m"}])
def test_another_server_that_speaks_json_is_no_engine(optistack: Optistack, small: Any, page: Any) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(page).encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ran = optistack("verify", "--endpoint", f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert ran.code == 2
    assert "is no small: it says no version and lists no models" in ran.err


def test_another_engine_at_the_endpoint_is_named(optistack: Optistack, small: Any) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = self.path == "/metrics"
            body = b"" if page else json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ran = optistack("verify", "--endpoint", f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert ran.code == 2
    assert "is vllm, and the stack is for small" in ran.err
    assert "--backend vllm" in ran.err
