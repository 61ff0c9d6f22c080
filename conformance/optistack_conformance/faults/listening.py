"""An HTTP server in a thread of this process."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Listening:
    """Answers by ``handler`` on a free port of the loopback while it is entered; ``url`` is where. ``attributes`` are
    those of each handler."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], **attributes: Any) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), attributes))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
