"""One request on its way: placed, tried, tried elsewhere while its client has nothing, accounted for."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from optistack_routing.fleet.desk import Outcome, Placement
from optistack_routing.http.head import RequestHead, ResponseHead
from optistack_routing.http.writing import Writer
from optistack_routing.policy.base import Request, Usage
from optistack_routing.proxy.attempt import Attempt
from optistack_routing.proxy.settings import Settings
from optistack_routing.proxy.stage import RequestStage

if TYPE_CHECKING:
    from optistack_routing.kv_index.overlap import Overlap

log = logging.getLogger("optistack.route")


class Client(Protocol):
    """The connection that a request came on. ``stuck``: it does not take what is written to it."""

    writer: Writer
    stuck: bool
    draining: bool

    def refuse(self, status: int, reason: str, *, close: bool = True, extra: bytes = b"") -> None:
        """Answer with an error of our own."""

    def answered(self, keep_alive: bool) -> None:
        """The whole answer is written."""

    def cut_off(self) -> None:
        """Close at once: HTTP has no other way to say that an answer is not all there."""


class Relay:
    """``stage`` says how far the request has come; ``refusal`` is a replica's answer that sent it elsewhere."""

    __slots__ = (
        "_attempt",
        "_fault",
        "_predicting",
        "body",
        "client",
        "head",
        "record",
        "refusal",
        "request",
        "settings",
        "size_bytes",
        "stage",
    )

    def __init__(
        self, settings: Settings, client: Client, head: RequestHead, body: list[bytes], size_bytes: int
    ) -> None:
        self.stage = RequestStage.READ
        self.settings = settings
        self.client = client
        self.head = head
        self.body = body  # until an answer has begun
        self.size_bytes = size_bytes
        self.request: Request = settings.reader.read(head, body, size_bytes)
        self.record = settings.recorder.begin(head, self.request, size_bytes)
        self.refusal: tuple[ResponseHead, list[bytes]] | None = None
        self._predicting: asyncio.Task[None] | None = None
        self._attempt: Attempt | None = None
        self._fault = (Outcome.UNPLACED, 503, "No replica is ready.")

    @property
    def may_try_again(self) -> bool:
        return self.record.tries <= self.settings.retries

    def start(self) -> None:
        overlap = self.settings.overlap
        if overlap is None or not self.body:
            self._ask()
            return
        self.stage = self.stage.then(RequestStage.PREDICTING)
        self._predicting = asyncio.get_running_loop().create_task(self._predict(overlap))

    async def _predict(self, overlap: Overlap) -> None:
        try:
            cached = await overlap.of(b"".join(self.body), self.request.session)
        except Exception:  # a request without a prediction is better than none
            log.exception("a prediction failed")
            cached = None
        self._predicting = None
        self.request = replace(self.request, cached_tokens=cached)
        self._ask()

    def _ask(self) -> None:
        self.stage = self.stage.then(RequestStage.ASKING)
        self.settings.desk.ask(self)

    def placed(self, placement: Placement | None) -> None:
        if placement is not None:
            self.stage = self.stage.then(RequestStage.TRYING)
            self.refusal = None
            self.settings.recorder.placed(self.record, placement.choice)
            self._attempt = Attempt(self, placement)
            self._attempt.send()
        elif self.refusal is not None:  # nobody else takes it: the client gets what the replica answered
            answer, written = self.refusal
            self.record.bytes_out = sum(map(len, written[1:]))
            self.client.writer.writelines(written)
            self.answered(Outcome.TURNED_AWAY, answer)
        else:
            self._give_up()

    # How a try ends.

    def answered(self, outcome: Outcome, answer: ResponseHead) -> None:
        """The client has all of ``answer``."""
        self._end(outcome)
        self.client.answered(self.head.keep_alive and not answer.until_close)

    def failed(self, outcome: Outcome, status: int, reason: str) -> None:
        """The try is over before anything has reached the client: try elsewhere, or say so."""
        again = self.may_try_again
        self.settings.recorder.failed(self.record, outcome, again=again)
        self.record.bytes_out = 0
        self._fault = (outcome, status, reason)
        attempt, self._attempt = self._attempt, None
        if again and attempt is not None:
            self.request = replace(self.request, avoid=self.request.avoid | {attempt.place.choice.replica})
            self._ask()
        else:
            self._give_up()

    def broken_off(self, outcome: Outcome) -> None:
        """The client has part of an answer, and gets no more."""
        if outcome is Outcome.CLIENT_GONE:
            self.record.status = 499
        self._end(outcome)
        self.client.cut_off()

    def _give_up(self) -> None:
        outcome, status, reason = self._fault
        self.record.status = status
        self._end(outcome)
        self.client.refuse(status, reason, close=False, extra=b"Retry-After: 1\r\n" if status == 503 else b"")

    # Its client and the clock.

    def gone(self) -> None:
        """The client has left: so does the replica's work for it."""
        if self.stage is RequestStage.ASKING:
            self.settings.desk.withdraw(self)
        if self._predicting is not None:
            self._predicting.cancel()
        self.record.status = 499
        self._end(Outcome.CLIENT_GONE)

    def pause(self) -> None:
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        if self._attempt is not None:
            self._attempt.resume()

    def tick(self, now_s: float) -> None:
        if self._attempt is not None:
            self._attempt.tick(now_s)

    def _end(self, outcome: Outcome) -> None:
        """Give everything back, on whichever way it ended."""
        self.stage = self.stage.then(RequestStage.OVER)
        usage = None
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            usage = attempt.end(outcome)
            self._compare(attempt.place.choice.replica, usage)
        self.body = []
        self.refusal = None
        self.settings.recorder.end(self.record, outcome, usage)

    def _compare(self, replica: str, usage: Usage | None) -> None:
        """Hold the prediction against what the engine says of the request."""
        predicted, overlap = self.request.cached_tokens, self.settings.overlap
        if overlap is None or predicted is None or usage is None or usage.cached_tokens is None:
            return
        if replica in predicted:
            overlap.served(replica, predicted[replica], usage.cached_tokens)
