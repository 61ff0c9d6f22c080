"""A client's request on its way: placed, sent, tried elsewhere while its client has nothing, accounted for."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from hmac import compare_digest
from time import monotonic
from typing import TYPE_CHECKING, cast

from optistack_routing.fleet.desk import Outcome, Placement
from optistack_routing.http.head import Refused, RequestHead, ResponseHead
from optistack_routing.http.server import Phase, ServerConnection
from optistack_routing.policy.base import Request, Usage
from optistack_routing.proxy.record import GAP_S, Record
from optistack_routing.proxy.settings import Settings
from optistack_routing.proxy.upstream import Pool, Upstream
from optistack_routing.proxy.usage import TAIL_BYTES, read_usage

if TYPE_CHECKING:
    from optistack_routing.kv_index.overlap import Overlap

log = logging.getLogger("optistack.route")

NO_REPLICA = (503, "No replica is ready.")
MAX_REFUSAL_BYTES = 65536
"""An answer that sends the request elsewhere is held to its end, in case nobody else takes it; a larger one is not."""


class Front(ServerConnection):
    """One client's connection. A try is: a place, a connection to its replica, an answer or a fault."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.limits = settings.limits
        self._write: Callable[[bytes], None] = lambda data: None
        self._gaps = settings.recorder.gaps
        self.method = b""
        self.request = Request()
        self._sending: list[bytes] = []
        self._size_bytes = 0
        self._place: Placement | None = None
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._predicting: asyncio.Task[None] | None = None
        self._asking = False
        self._held: list[bytes] = []  # the answer's head, kept until a byte of its body has come
        self._turned_away = False  # the answer says: elsewhere; all of it is held
        self._fault = NO_REPLICA
        self._begun = False  # something has reached the client
        self._first = self._last_but_one = self._last = b""  # pieces of the answer that may say its usage
        self._last_s = 0.0
        self._stuck = False
        self._answer: ResponseHead | None = None
        self._record: Record = Record()

    # The client's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._write = self.writer.write
        self.settings.connections.add(self)
        self.settings.recorder.connections += 1
        if self.settings.draining:
            self.drain()

    def connection_lost(self, error: Exception | None) -> None:
        self.settings.connections.discard(self)
        self.settings.recorder.connections -= 1
        super().connection_lost(error)

    def admitted(self, head: RequestHead) -> None:
        path = head.target
        if path == b"/health" and head.method in (b"GET", b"HEAD"):
            if head.length != 0:  # it needs no key, so it gets no memory
                raise Refused(400, "A health check has no body.")
            return
        keys = self.settings.api_keys
        if keys:
            given = head.by_name.get(b"authorization", b"")
            given = given[7:] if given[:7].lower() == b"bearer " else head.by_name.get(b"x-api-key", b"")
            if sum(compare_digest(given, key) for key in keys) == 0:  # each is compared, whichever fits
                raise Refused(401, "The API key is missing or wrong: send Authorization: Bearer KEY.")
        path = path.split(b"?", 1)[0]
        if not path.startswith(self.settings.prefixes) or b"/." in path or b"%2e" in path.lower():
            raise Refused(404, "This path is not routed.")

    def refused(self, status: int) -> None:
        self.settings.recorder.refused(status)

    def handle(self, head: RequestHead, body: list[bytes], size_bytes: int) -> None:
        settings = self.settings
        if head.target == b"/health":
            self._tell_health()
            return
        self.method = head.method
        self.request = settings.reader.read(head, body, size_bytes)
        self._sending = body
        self._size_bytes = size_bytes
        self._begun = False
        self._fault = NO_REPLICA
        self._turned_away = False
        self._first = self._last_but_one = self._last = b""
        self._record = settings.recorder.begin(head, self.request, size_bytes)
        if settings.overlap is not None and body:
            self._predicting = asyncio.get_running_loop().create_task(self._predict(settings.overlap, body))
        else:
            self._ask()

    async def _predict(self, overlap: Overlap, body: list[bytes]) -> None:
        try:
            cached = await overlap.of(b"".join(body), self.request.session)
        except Exception:  # a request without a prediction is better than none
            log.exception("a prediction failed")
            cached = None
        self._predicting = None
        self.request = replace(self.request, cached_tokens=cached)
        self._ask()

    def _tell_health(self) -> None:
        ready = self.settings.recorder.ready()
        if self.settings.draining:
            self.respond(503, b'{"status":"draining"}\n')
        else:
            self.respond(*(200, b'{"status":"ok"}\n') if ready else (503, b'{"status":"no replica is ready"}\n'))

    def gone(self) -> None:
        """The client has left: so does the replica's work for it."""
        self._end(Outcome.CLIENT_GONE)

    def pause_writing(self) -> None:
        self._stuck = True
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        self._stuck = False
        if self._begun:
            self._last_s = monotonic()
        if self._upstream is not None:
            self._upstream.transport.resume_reading()

    # A try.

    def _ask(self) -> None:
        self._asking = True
        self.settings.desk.ask(self)

    def placed(self, placement: Placement | None) -> None:
        self._asking = False
        if placement is not None:
            self._place = placement
            self._turned_away = False
            self._held = []
            self.settings.recorder.placed(self._record, placement.choice)
            self._last_s = monotonic()
            self._send()
        elif self._turned_away:
            self._pass_on_the_refusal()
        else:
            self._fail(*self._fault)

    def _send(self, *, fresh: bool = False) -> None:
        """``fresh``: on a new connection."""
        pool = self.settings.pools.of(cast(Placement, self._place).choice.replica)
        connection = None if fresh else pool.take()
        if connection is not None:
            self._sent_on(connection)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(pool))

    async def _connect(self, pool: Pool) -> None:
        try:
            async with asyncio.timeout(self.settings.connect_s):
                connection = await pool.connect()
        except Exception as error:  # whatever it is, the request has a place to give back
            self._connecting = None
            status = 504 if isinstance(error, TimeoutError) else 502
            self._again(Outcome.UNREACHABLE, status, "The replica does not accept connections.")
            return
        self._connecting = None
        self._sent_on(connection)

    def _sent_on(self, connection: Upstream) -> None:
        head = cast(RequestHead, self._head)
        self._upstream = connection
        if self._stuck:
            connection.transport.pause_reading()
        host = connection.pool.address.authority
        connection.send(self, head.forwarded(host, self._size_bytes, self.settings.authorization), self._sending)

    def _again(self, outcome: Outcome, status: int, reason: str) -> None:
        """A try has failed before anything reached the client: try elsewhere, or say so."""
        place, self._place = cast(Placement, self._place), None
        self._upstream = None
        place.end(outcome)
        again = self._record.tries <= self.settings.retries
        self.settings.recorder.failed(self._record, outcome, again=again)
        self._record.bytes_out = 0
        if outcome is not Outcome.TURNED_AWAY:  # only a refusal that has come to its end can be passed on
            self._turned_away = False
            self._held = []
        self._fault = (status, reason)
        if again:
            self.request = replace(self.request, avoid=self.request.avoid | {place.choice.replica})
            self._ask()
        else:
            self._fail(status, reason)

    # The replica's side.

    def answer_begins(self, head: ResponseHead, first: bytes) -> None:
        settings = self.settings
        request = cast(RequestHead, self._head)
        self._answer = head
        self._record.status = head.status
        self._turned_away = head.status in settings.retry_statuses and self._record.tries <= settings.retries
        extra = b""
        if settings.name_replica:
            extra = b"x-optistack-replica: %b\r\n" % cast(Placement, self._place).choice.replica.encode()
        close = not request.keep_alive or self.draining or head.until_close
        self._held = [head.forwarded(close, extra)]
        if first:
            self.answer_goes_on(first)

    def answer_goes_on(self, data: bytes) -> None:
        now_s = monotonic()
        record = self._record
        record.bytes_out += len(data)
        if self._begun:
            gaps, gap_s = self._gaps, now_s - self._last_s
            gaps.counts[bisect_left(GAP_S, gap_s)] += 1  # Histogram.observe, without its call for each chunk
            gaps.sum += gap_s
            self._last_s = now_s
            self._last_but_one = self._last
            self._last = data
            self._write(data)
            return
        self._held.append(data)
        if self._turned_away and record.bytes_out < MAX_REFUSAL_BYTES:
            return
        self._last_s = now_s
        self._turned_away = False
        self._begun = True
        cast(Placement, self._place).first_byte(well=cast(ResponseHead, self._answer).status < 500)
        self.settings.recorder.first_byte(record, now_s)
        self._first = data
        self.writer.writelines(self._held)
        self._held = []
        self._sending = []

    def answer_ends(self) -> None:
        self._upstream = None
        head = cast(ResponseHead, self._answer)
        if self._turned_away:
            self._again(Outcome.TURNED_AWAY, head.status, "The replica turned the request away.")
            return
        if not self._begun:
            self.writer.writelines(self._held)
        self._finish(Outcome.SERVED if head.status < 400 else Outcome.ERROR if head.status < 500 else Outcome.FAILED)

    def _pass_on_the_refusal(self) -> None:
        """Nobody else takes the request: the client gets what the replica answered."""
        self.writer.writelines(self._held)
        self._finish(Outcome.TURNED_AWAY)

    def _finish(self, outcome: Outcome) -> None:
        keep = not (cast(ResponseHead, self._answer).until_close or not cast(RequestHead, self._head).keep_alive)
        self._end(outcome)
        self.answered(keep)

    def answer_breaks(self, reason: str, *, stale: bool) -> None:
        self._upstream = None
        if stale:
            self._send(fresh=True)
        elif self._begun:
            # What was sent cannot be taken back; a connection closed early is how HTTP says that an answer is cut off.
            self.settings.recorder.failed(self._record, Outcome.BROKEN, again=False)
            self._end(Outcome.BROKEN)
            self.phase = Phase.CLOSED
            self.transport.abort()
        else:
            self._again(Outcome.BROKEN, 502, reason)

    # The end.

    def _fail(self, status: int, reason: str) -> None:
        self._record.status = status
        self._end(None)
        self.refuse(status, reason, close=False, extra=b"Retry-After: 1\r\n" if status == 503 else b"")

    def _end(self, outcome: Outcome | None) -> None:
        """Give everything back, on whichever way it ended."""
        if outcome is Outcome.CLIENT_GONE:
            self._record.status = 499
        if self._predicting is not None:
            self._predicting.cancel()
            self._predicting = None
        if self._asking:
            self._asking = False
            self.settings.desk.withdraw(self)
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        connection, self._upstream = self._upstream, None
        if connection is not None:
            connection.discard()
        place, self._place = self._place, None
        usage = None
        if place is not None:
            if outcome is Outcome.SERVED:
                usage = read_usage(
                    b"".join([part[-TAIL_BYTES:] for part in (self._first, self._last_but_one, self._last)])
                )
            place.end(outcome or Outcome.ERROR, usage)
            self._compare(place, usage)
        self._sending = []
        self._held = []
        self._first = self._last_but_one = self._last = b""
        self.settings.recorder.end(self._record, outcome, usage)

    def _compare(self, place: Placement, usage: Usage | None) -> None:
        """Hold the prediction against what the engine says of the request."""
        predicted, overlap = self.request.cached_tokens, self.settings.overlap
        if overlap is None or predicted is None or usage is None or usage.cached_tokens is None:
            return
        replica = place.choice.replica
        if replica in predicted:
            overlap.served(replica, predicted[replica], usage.cached_tokens)

    def tick(self, now_s: float) -> None:
        if self.phase is not Phase.BUSY:
            super().tick(now_s)
            return
        waited_s = now_s - self._last_s
        if self._upstream is None:
            return
        if not self._begun:
            if waited_s > self.settings.first_byte_s:
                self._upstream.discard()
                self._again(
                    Outcome.TIMED_OUT, 504, f"The replica did not answer within {self.settings.first_byte_s:g} s."
                )
        elif waited_s > self.settings.idle_s:
            self._end(Outcome.CLIENT_GONE if self._stuck else Outcome.TIMED_OUT)
            self.phase = Phase.CLOSED
            self.transport.abort()
