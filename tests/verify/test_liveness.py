"""A server is there as long as somebody takes its connections, however slow the answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from optistack.verify import liveness
from optistack.verify.liveness import takes_connections


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(liveness, "EVERY_S", 0.01)


@contextmanager
def listening(says: bytes | None) -> Iterator[str]:
    """A socket that takes each connection, and says ``says`` and hangs up, or None: nothing, ever."""
    taken: list[socket.socket] = []

    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            taken.append(connection)
            if says is not None:
                connection.recv(4096)
                connection.sendall(says)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in taken:
                one.close()


def test_a_server_that_never_answers_is_there() -> None:
    with listening(None) as url:
        assert takes_connections(url)


@pytest.mark.parametrize("status", [b"200 OK", b"401 Unauthorized", b"500 Internal Server Error"])
def test_whatever_is_answered_counts(status: bytes) -> None:
    with listening(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n") as url:
        assert takes_connections(url, "key")


def test_nobody_is_gone_and_so_is_one_that_hangs_up() -> None:
    assert not takes_connections("http://127.0.0.1:1")
    with listening(b"") as url:
        assert not takes_connections(url)
