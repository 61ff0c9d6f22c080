"""One try of a request: a place at a replica, a connection, and an answer or a fault."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from time import monotonic
from typing import TYPE_CHECKING, cast

from optistack_routing.fleet.desk import Outcome, Placement
from optistack_routing.http.head import ResponseHead
from optistack_routing.policy.base import Usage
from optistack_routing.proxy.pool import Pool
from optistack_routing.proxy.record import GAP_S
from optistack_routing.proxy.stage import TryStage
from optistack_routing.proxy.upstream import Upstream
from optistack_routing.proxy.usage import TAIL_BYTES, read_usage

if TYPE_CHECKING:
    from optistack_routing.proxy.relay import Relay

MAX_REFUSAL_BYTES = 65536
"""An answer that sends the request elsewhere is held to its end, in case nobody else takes it; a larger one is not."""
_PASSING = TryStage.PASSING  # looked at for each chunk


class Attempt:
    """``stage`` says how far it has come. It tells its request, once, how it ended: answered, failed, or broken off."""

    __slots__ = (
        "_answer",
        "_first",
        "_gaps",
        "_held",
        "_last",
        "_last_but_one",
        "_last_s",
        "_record",
        "_relay",
        "_task",
        "_upstream",
        "_write",
        "method",
        "place",
        "stage",
    )

    def __init__(self, relay: Relay, place: Placement) -> None:
        self.stage = TryStage.PLACED
        self.place = place
        self.method = relay.head.method
        self._relay = relay
        self._record = relay.record
        self._write = relay.client.writer.write
        self._gaps = relay.settings.recorder.gaps
        self._task: asyncio.Task[None] | None = None
        self._upstream: Upstream | None = None
        self._answer: ResponseHead | None = None
        self._held: list[bytes] = []  # what has come of the answer and is not passed on
        self._first = self._last_but_one = self._last = b""  # pieces of the answer that may say its usage
        self._last_s = monotonic()

    def send(self, *, fresh: bool = False) -> None:
        """``fresh``: on a new connection."""
        pool = self._relay.settings.pools.of(self.place.choice.replica)
        connection = None if fresh else pool.take()
        if connection is not None:
            self._sent_on(connection)
        else:
            self.stage = self.stage.then(TryStage.CONNECTING)
            self._task = asyncio.get_running_loop().create_task(self._connect(pool))

    async def _connect(self, pool: Pool) -> None:
        try:
            async with asyncio.timeout(self._relay.settings.connect_s):
                connection = await pool.connect()
        except Exception as error:  # whatever it is, there is a place to give back
            self._task = None
            status = 504 if isinstance(error, TimeoutError) else 502
            self._fail(Outcome.UNREACHABLE, status, "The replica does not accept connections.")
            return
        self._task = None
        self._sent_on(connection)

    def _sent_on(self, connection: Upstream) -> None:
        self.stage = self.stage.then(TryStage.SENT)
        relay = self._relay
        self._upstream = connection
        if relay.client.stuck:
            connection.transport.pause_reading()
        host = connection.pool.address.authority
        connection.send(self, relay.head.forwarded(host, relay.size_bytes, relay.settings.authorization), relay.body)

    # What the replica answers.

    def answer_begins(self, head: ResponseHead, first: bytes) -> None:
        relay = self._relay
        settings = relay.settings
        turned_away = head.status in settings.retry_statuses and relay.may_try_again
        self.stage = self.stage.then(TryStage.TURNED_AWAY if turned_away else TryStage.HOLDING)
        self._answer = head
        self._record.status = head.status
        extra = b""
        if settings.name_replica:
            extra = b"x-optistack-replica: %b\r\n" % self.place.choice.replica.encode()
        close = not relay.head.keep_alive or relay.client.draining or head.until_close
        self._held = [head.forwarded(close, extra)]
        if first:
            self.answer_goes_on(first)

    def answer_goes_on(self, data: bytes) -> None:
        now_s = monotonic()
        self._record.bytes_out += len(data)
        if self.stage is _PASSING:
            gaps, gap_s = self._gaps, now_s - self._last_s
            gaps.counts[bisect_left(GAP_S, gap_s)] += 1  # Histogram.observe, without its call for each chunk
            gaps.sum += gap_s
            self._last_s = now_s
            self._last_but_one = self._last
            self._last = data
            self._write(data)
            return
        self._held.append(data)
        if self.stage is TryStage.HOLDING or self._record.bytes_out >= MAX_REFUSAL_BYTES:
            self._pass_on(data, now_s)

    def _pass_on(self, first: bytes, now_s: float) -> None:
        self.stage = self.stage.then(_PASSING)
        self._last_s = now_s
        self._first = first
        relay = self._relay
        self.place.first_byte(well=cast(ResponseHead, self._answer).status < 500)
        relay.settings.recorder.first_byte(self._record, now_s)
        relay.client.writer.writelines(self._held)
        self._held = []
        relay.body = []

    def answer_ends(self) -> None:
        self._upstream = None
        answer = cast(ResponseHead, self._answer)
        status = answer.status
        if self.stage is TryStage.TURNED_AWAY:
            self._relay.refusal = (answer, self._held)
            self._fail(Outcome.TURNED_AWAY, status, "The replica turned the request away.")
            return
        if self.stage is TryStage.HOLDING:  # it has no body
            self._relay.client.writer.writelines(self._held)
        self._relay.answered(
            Outcome.SERVED if status < 400 else Outcome.ERROR if status < 500 else Outcome.FAILED, answer
        )

    def answer_breaks(self, reason: str, *, stale: bool) -> None:
        self._upstream = None
        if stale:
            self.send(fresh=True)
        elif self.stage is _PASSING:
            self._relay.settings.recorder.failed(self._record, Outcome.BROKEN, again=False)
            self._relay.broken_off(Outcome.BROKEN)
        else:
            self._fail(Outcome.BROKEN, 502, reason)

    # Its client and the clock.

    def pause(self) -> None:
        """The client does not read."""
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def resume(self) -> None:
        if self.stage is _PASSING:
            self._last_s = monotonic()
        if self._upstream is not None:
            self._upstream.transport.resume_reading()

    def tick(self, now_s: float) -> None:
        """End what has taken too long; connecting has a limit of its own."""
        if self._upstream is None:
            return
        waited_s, settings = now_s - self._last_s, self._relay.settings
        if self.stage is _PASSING:
            if waited_s > settings.idle_s:
                self._relay.broken_off(Outcome.CLIENT_GONE if self._relay.client.stuck else Outcome.TIMED_OUT)
        elif waited_s > settings.first_byte_s:
            reason = f"The replica did not answer within {settings.first_byte_s:g} s."
            self._fail(Outcome.TIMED_OUT, 504, reason)

    # The end.

    def _fail(self, outcome: Outcome, status: int, reason: str) -> None:
        """Nothing has reached the client."""
        self.end(outcome)
        self._relay.failed(outcome, status, reason)

    def end(self, outcome: Outcome) -> Usage | None:
        """Give everything back; what the answer said of its tokens, where it was served."""
        self.stage = self.stage.then(TryStage.OVER)
        if self._task is not None:
            self._task.cancel()
            self._task = None
        connection, self._upstream = self._upstream, None
        if connection is not None:
            connection.discard()
        usage = None
        if outcome is Outcome.SERVED:
            usage = read_usage(b"".join([part[-TAIL_BYTES:] for part in (self._first, self._last_but_one, self._last)]))
        self.place.end(outcome, usage)
        return usage
