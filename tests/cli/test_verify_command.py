"""``optistack verify`` against another engine than the stack's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Optistack = Callable[..., Any]


def verified(optistack: Optistack, page: Any) -> Any:
    """``optistack verify`` before a server that answers ``page``, and no metrics."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"" if self.path == "/metrics" else json.dumps(page).encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ran = optistack("verify", "--endpoint", f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    return ran


@pytest.mark.parametrize("page", [{}, {"data": []}, {"data": {"m": 1}}, {"data": "m"}])
def test_another_server_that_speaks_json_is_no_engine(optistack: Optistack, small: Any, page: Any) -> None:
    ran = verified(optistack, page)
    assert ran.code == 2
    assert "is no small: it says no version and lists no models" in ran.err


def test_another_engine_at_the_endpoint_is_named(optistack: Optistack, small: Any) -> None:
    ran = verified(optistack, {"data": [{"id": "m", "owned_by": "vllm"}]})
    assert ran.code == 2
    assert "is vllm, and the stack is for small" in ran.err
    assert "--backend vllm" in ran.err
