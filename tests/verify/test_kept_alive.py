"""A server that closes a kept-alive connection without saying so: what was asked on it is asked once more."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from optistack.errors import InputError
from optistack.verify.endpoint import Endpoint
from optistack_conformance.client import COMPLETIONS, Client

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
ERROR = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 14\r\n\r\ndata: [DONE]\n\n"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"

Asked = list[bytes]


def _read_request(connection: socket.socket) -> bytes:
    """The request line of a whole request; empty when the client closed."""
    got = b""
    while b"\r\n\r\n" not in got:
        part = connection.recv(65_536)
        if not part:
            return b""
        got += part
    head, _, body = got.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0]):
        body += connection.recv(65_536)
    return head.split(b"\r\n")[0]


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def server(*connections: Sequence[bytes | Callable[[socket.socket], None]]) -> Iterator[tuple[str, Asked]]:
    """Takes one connection after the other. On each it answers one request with each of the given bytes; where there
    is a function instead it reads a request, calls it and closes. Gives its URL and the request lines that it read."""
    asked: Asked = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answers in connections:
                connection, _ = listener.accept()
                with connection:
                    for answer in answers:
                        line = _read_request(connection)
                        if not line:
                            break
                        asked.append(line)
                        if callable(answer):
                            answer(connection)
                        else:
                            connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    thread.join(5)
    assert not thread.is_alive()


def _close(_: socket.socket) -> None:
    pass


@pytest.mark.parametrize("end", [_close, _reset], ids=["closed", "reset"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_goes_out_on_a_closed_connection_is_asked_once_more(
    method: str, end: Callable[[socket.socket], None]
) -> None:
    with server([ERROR, end], [OK]) as (url, asked), Endpoint(url) as endpoint:
        assert endpoint.request("POST", "/tokenize", json={}).status_code == 500
        assert endpoint.request(method, "/v1/x").json() == {}
    assert asked[1:] == [f"{method} /v1/x HTTP/1.1".encode()] * 2


def test_a_stream_too() -> None:
    with server([ERROR, _reset], [EVENTS]) as (url, asked), Client(url) as client:
        client.__dict__["_served"] = "some"
        assert client.request("POST", "/tokenize", json={}).status_code == 500
        assert client.stream(COMPLETIONS, prompt="x").done
    assert len(asked) == 3


def test_once_more_and_no_oftener() -> None:
    with server([ERROR, _reset], [_reset]) as (url, asked), Endpoint(url) as endpoint:
        endpoint.request("POST", "/tokenize", json={})
        with pytest.raises(InputError, match=r"No engine answers at .*/v1/x: ReadError"):
            endpoint.request("GET", "/v1/x")
    assert len(asked) == 3


def test_a_new_connection_that_is_closed_is_an_engine_that_does_not_answer() -> None:
    with server([_reset]) as (url, asked), Endpoint(url) as endpoint, pytest.raises(InputError, match="ReadError"):
        endpoint.request("GET", "/v1/x")
    assert len(asked) == 1


def test_an_answer_that_broke_off_is_not_asked_for_again() -> None:
    def cut(connection: socket.socket) -> None:
        connection.sendall(CUT)

    with server([OK, cut]) as (url, asked), Endpoint(url) as endpoint:
        endpoint.request("GET", "/v1/x")
        with pytest.raises(InputError, match="RemoteProtocolError"):
            endpoint.request("GET", "/v1/x")
    assert len(asked) == 2
