"""A connection to a replica: what it answers is passed on as it comes."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol, cast

from optistack_routing.fleet.address import Address
from optistack_routing.http.chunked import Chunked
from optistack_routing.http.head import Refused, ResponseHead, read_response
from optistack_routing.http.writing import Writer

MAX_HEAD_BYTES = 256 * 1024
STALE_S = 0.05
"""A kept connection that the replica had given up ends within a round trip. Later the replica has read the request, and
whether it has begun to work on it cannot be known."""


class Exchange(Protocol):
    """Whoever sent the request that a connection is answering."""

    method: bytes

    def answer_begins(self, head: ResponseHead, first: bytes) -> None:
        """The head is here, and ``first`` of the body."""

    def answer_goes_on(self, data: bytes) -> None: ...

    def answer_ends(self) -> None: ...

    def answer_breaks(self, reason: str, *, stale: bool) -> None:
        """``stale``: a connection that had been idle was closed before anything came back; nobody is at fault."""


class Home(Protocol):
    """The pool that a connection belongs to."""

    address: Address

    def release(self, connection: Upstream) -> None:
        """It has answered, and may be used again."""

    def lost(self, connection: Upstream) -> None: ...


class Upstream(asyncio.Protocol):
    """One connection to a replica, idle or answering one request."""

    __slots__ = (
        "_buffer",
        "_chunked",
        "_left",
        "exchange",
        "head",
        "idle_since_s",
        "pool",
        "sent_s",
        "transport",
        "used",
        "writer",
    )

    def __init__(self, pool: Home) -> None:
        self.pool = pool
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.writer: Writer = cast(Writer, None)
        self.exchange: Exchange | None = None
        self.head: ResponseHead | None = None
        self.used = 0
        self.sent_s = 0.0
        self.idle_since_s = 0.0
        self._buffer = b""
        self._left = 0
        self._chunked: Chunked | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.writer = Writer(self.transport)

    def send(self, exchange: Exchange, head: bytes, body: list[bytes]) -> None:
        self.exchange = exchange
        self.head = None
        self.used += 1
        self.sent_s = monotonic()
        self.writer.writelines([head, *body])

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            self.discard()  # an idle connection has nothing to say
            return
        head = self.head
        try:
            if head is None:
                self._begin(exchange, self._buffer + data if self._buffer else data)
                return
            chunked = self._chunked
            if chunked is not None:
                used = chunked.feed(data)
                if not chunked.done:
                    exchange.answer_goes_on(data)
                    return
            elif head.length is None:
                exchange.answer_goes_on(data)
                return
            else:
                used = min(self._left, len(data))
                self._left -= used
                if self._left:
                    exchange.answer_goes_on(data)
                    return
        except Refused as refusal:
            self._broken(refusal.reason)
            return
        exchange.answer_goes_on(data if used == len(data) else data[:used])
        self._finish(used == len(data))

    def _begin(self, exchange: Exchange, data: bytes) -> None:
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > MAX_HEAD_BYTES or (len(data) >= 5 and not data.startswith(b"HTTP/")):
                    raise Refused(502, "The replica's answer has no head.")
                self._buffer = data
                return
            head = read_response(data[: end + 4], exchange.method)
            data = data[end + 4 :]
            if head.status == 101:
                raise Refused(502, "The replica changed protocols, and nobody had asked it to.")
            if head.status >= 200:
                break
        self._buffer = b""
        used, ended = len(data), False
        self._chunked = None
        if head.chunked:
            self._chunked = Chunked(502)
            used = self._chunked.feed(data)
            ended = self._chunked.done
        elif head.length is not None:
            used = min(head.length, len(data))
            self._left = head.length - used
            ended = not self._left
        self.head = head
        exchange.answer_begins(head, data[:used])
        if ended:
            self._finish(used == len(data))

    def _finish(self, clean: bool) -> None:
        exchange, self.exchange = cast(Exchange, self.exchange), None
        keep = clean and cast(ResponseHead, self.head).keep_alive
        if keep:
            self.pool.release(self)
        else:
            self.discard()
        exchange.answer_ends()

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self.pool.lost(self)
        exchange = self.exchange
        if exchange is None:
            return
        if self.head is not None and self.head.until_close and error is None:
            self.exchange = None
            exchange.answer_ends()
            return
        begun = self.head is not None or bool(self._buffer)
        reason = f"The replica closed the connection {'in the middle of' if begun else 'before'} its answer."
        self._broken(reason, stale=not begun and self.used > 1 and monotonic() - self.sent_s < STALE_S)

    def _broken(self, reason: str, *, stale: bool = False) -> None:
        exchange, self.exchange = self.exchange, None
        self.discard()
        if exchange is not None:
            exchange.answer_breaks(reason, stale=stale)

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def discard(self) -> None:
        """Close at once: a replica stops computing when its client is gone."""
        self.exchange = None
        self.pool.lost(self)
        if not self.transport.is_closing():
            self.transport.abort()
