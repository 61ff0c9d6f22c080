"""One connection of a client: requests read whole, within limits of size and time, and one answered at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import cast

from optistack_routing.http.answer import answer_head, error_body
from optistack_routing.http.body import Body
from optistack_routing.http.head import Refused, RequestHead, read_request
from optistack_routing.http.writing import Writer

AHEAD_BYTES = 65536
"""How much of the next requests is read while one is being answered; more waits in the socket."""

LINGER_S = 2.0
LINGER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """What a client may use. ``head_s`` and ``body_s`` are for the whole of each, so that dripping does not help."""

    head_bytes: int = 64 * 1024
    body_bytes: int = 64 * 1024 * 1024
    head_s: float = 10.0
    body_s: float = 120.0
    idle_s: float = 75.0


class Phase(Enum):
    IDLE = "idle"  # between requests
    HEAD = "head"
    BODY = "body"
    BUSY = "busy"  # a request is being answered
    LINGERING = "lingering"  # answered for good; what still comes is thrown away
    CLOSED = "closed"


class ServerConnection(asyncio.Protocol):
    """Reads requests and hands each to :meth:`handle`, which answers and then calls :meth:`answered`.

    A client that closes its side is taken to be gone, also where it only meant to say that it sends no more: the two
    look alike, and an engine must not go on computing for nobody.
    """

    limits = Limits()

    def __init__(self) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.writer: Writer = cast(Writer, None)
        self.phase = Phase.IDLE
        self.deadline_s = 0.0
        self.draining = False
        self._buffer = b""
        self._head: RequestHead | None = None
        self._body: Body | None = None  # of a request that is coming in
        self._reading = True
        self._lingered_bytes = 0
        self._unsent_bytes = 0

    # What a subclass does.

    def handle(self, head: RequestHead, body: list[bytes], size_bytes: int) -> None:
        raise NotImplementedError

    def gone(self) -> None:
        """The client has left while its request was being answered."""

    def refused(self, status: int) -> None:
        """A request was answered with ``status`` without being handled."""

    def admitted(self, head: RequestHead) -> None:
        """Raises Refused for a request that is turned away before its body is read."""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.writer = Writer(self.transport)
        self.deadline_s = monotonic() + self.limits.idle_s

    def data_received(self, data: bytes) -> None:
        phase = self.phase
        if phase is Phase.LINGERING:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        if phase is Phase.BUSY:
            self._buffer += data
            if len(self._buffer) > AHEAD_BYTES and self._reading:
                self._reading = False
                self.transport.pause_reading()
            return
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        try:
            self._read(data)
        except Refused as refusal:
            self.refuse(refusal.status, refusal.reason)

    def eof_received(self) -> bool | None:
        return None  # closes the transport

    def connection_lost(self, error: Exception | None) -> None:
        was, self.phase = self.phase, Phase.CLOSED
        self._buffer = b""
        self._body = None
        if was is Phase.BUSY:
            self.gone()

    def tick(self, now_s: float) -> None:
        """Called several times a second: ends what has taken too long."""
        if now_s < self.deadline_s:
            return
        if self.phase is Phase.IDLE:
            self._close()
        elif self.phase is Phase.HEAD:
            self.refuse(408, f"The headers took more than {self.limits.head_s:g} s.")
        elif self.phase is Phase.BODY:
            self.refuse(408, f"The body took more than {self.limits.body_s:g} s.")
        elif self.phase is Phase.LINGERING:
            self.transport.abort()
        elif self.phase is Phase.CLOSED:
            left_bytes = self.transport.get_write_buffer_size()
            if left_bytes < self._unsent_bytes:  # the client reads, slowly
                self._unsent_bytes = left_bytes
                self.deadline_s = now_s + self.limits.idle_s
            else:
                self.transport.abort()

    # Reading.

    def _read(self, data: bytes) -> None:
        if self._body is not None:
            self._read_body(self._body, data)
            return
        if self.phase is Phase.IDLE:
            if data[:2] == b"\r\n":  # some clients send one after a body (RFC 9112, section 2.2)
                data = data[2:]
            if not data:
                return
            self.phase = Phase.HEAD
            self.deadline_s = monotonic() + self.limits.head_s
        end = data.find(b"\r\n\r\n")
        if end < 0 or end > self.limits.head_bytes:
            if len(data) > self.limits.head_bytes:
                raise Refused(431, f"The headers are larger than {self.limits.head_bytes} bytes.")
            if data.endswith((b"\n\n", b"\r\r")) or (len(data) > 8192 and b"\r\n" not in data[:8192]):
                raise Refused(400, "The request does not begin with a line of HTTP.")
            self._buffer = data
            return
        head = self._head = read_request(data[: end + 4])
        self.admitted(head)
        body = Body(head.length, self.limits.body_bytes)
        rest = data[end + 4 :]
        if head.length == 0:
            self._whole(body, rest)
            return
        self._body = body
        self.phase = Phase.BODY
        self.deadline_s = monotonic() + self.limits.body_s
        if rest:
            self._read_body(body, rest)
        elif head.minor == 1 and b"expect" in head.by_name:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_body(self, body: Body, data: bytes) -> None:
        rest = body.feed(data)
        if rest is not None:
            self._body = None
            self._whole(body, rest)

    def _whole(self, body: Body, ahead: bytes) -> None:
        self._buffer = ahead
        self.phase = Phase.BUSY
        self.handle(cast(RequestHead, self._head), body.pieces, body.size_bytes)

    # Answering.

    def answered(self, keep_alive: bool) -> None:
        """The answer is written: go on with the next request, or close."""
        self._head = None
        if self.phase is Phase.CLOSED:
            return
        if not keep_alive or self.draining:
            self._close()
            return
        self.phase = Phase.IDLE
        self.deadline_s = monotonic() + self.limits.idle_s
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()
        if self._buffer:
            # Not at once: an answer is often given from within handle().
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self.phase is Phase.IDLE and self._buffer:
            self.data_received(b"")

    def drain(self) -> None:
        """Take no further request; finish the one that is being answered."""
        self.draining = True
        if self.phase is Phase.IDLE:
            self._close()

    def _close(self) -> None:
        """Once what was written has left, which a client that reads nothing does not put off for ever."""
        self.phase = Phase.CLOSED
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self.deadline_s = monotonic() + self.limits.idle_s
        self.transport.close()

    def respond(
        self, status: int, body: bytes, *, kind: bytes = b"application/json", extra: bytes = b"", close: bool = False
    ) -> None:
        """Answer by ourselves. ``extra`` is whole header lines."""
        head = self._head
        close = close or self.draining or head is None or not head.keep_alive
        lines = answer_head(status, kind, len(body), close=close, extra=extra)
        self.transport.write(lines if head is not None and head.method == b"HEAD" else lines + body)
        if not close:
            self.answered(True)
            return
        # Closing with unread bytes resets the connection, and the client would lose the answer.
        self.phase = Phase.LINGERING
        self._body = None
        self._buffer = b""
        self.deadline_s = monotonic() + LINGER_S
        if self.transport.can_write_eof():
            if not self._reading:
                self._reading = True
                self.transport.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()

    def refuse(self, status: int, reason: str, *, close: bool = True, extra: bytes = b"") -> None:
        """Answer with an error in the form that OpenAI's clients read."""
        self.refused(status)
        self.respond(status, error_body(status, reason), close=close, extra=extra)
