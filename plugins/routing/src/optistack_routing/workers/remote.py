"""A worker's desk: the same questions, answered by the process that owns the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from optistack_routing.fleet.desk import Outcome, Waiter
from optistack_routing.policy.base import Choice, Reason, Usage
from optistack_routing.workers.wire import Wire


@dataclass(slots=True)
class RemotePlace:
    wire: Wire
    number: int
    choice: Choice
    ended: bool = field(default=False, init=False)

    def first_byte(self, *, well: bool = True) -> None:
        self.wire.say({"first": self.number, "well": well})

    def end(self, outcome: Outcome, usage: Usage | None = None) -> None:
        if self.ended:
            return
        self.ended = True
        message: dict[str, Any] = {"end": self.number, "outcome": outcome}
        if usage is not None:
            message["usage"] = [usage.prompt_tokens, usage.cached_tokens, usage.output_tokens]
        self.wire.say(message)


class RemoteDesk(Wire):
    """``ready`` is the owner's word on whether any replica accepts requests."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        self.reopen: Callable[[], None] = lambda: None
        self.config: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.told_to_stop = asyncio.Event()
        self._waiters: dict[int, Waiter] = {}
        self._numbers = 0
        self.owner_gone = False

    def ask(self, waiter: Waiter) -> None:
        if self.owner_gone or self._transport.is_closing():
            waiter.placed(None)
            return
        self._numbers += 1
        self._waiters[self._numbers] = waiter
        request = waiter.request
        self.say(
            {
                "ask": self._numbers,
                "session": request.session,
                "tokens": request.prompt_tokens,
                "prefix": request.prefix.hex() if request.prefix is not None else None,
                "cached": request.cached_tokens,
                "avoid": sorted(request.avoid),
            }
        )

    def withdraw(self, waiter: Waiter) -> None:
        for number, known in self._waiters.items():
            if known is waiter:
                del self._waiters[number]
                self.say({"withdraw": number})
                return

    def heard(self, message: dict[str, Any]) -> None:
        if "place" in message:
            self._placed(message)
        elif "ready" in message:
            self.ready = message["ready"]
        elif "config" in message:
            self.config.set_result(message["config"])
        elif "reopen" in message:
            self.reopen()
        elif "stop" in message:
            self.told_to_stop.set()

    def _placed(self, message: dict[str, Any]) -> None:
        number, waiter = message["place"], self._waiters.pop(message["place"], None)
        place = None
        if message["replica"] is not None:
            choice = Choice(message["replica"], Reason(message["reason"]), message["predicted"])
            place = RemotePlace(self, number, choice)
        if waiter is not None:
            waiter.placed(place)
        elif place is not None:  # it withdrew while the answer was on its way
            place.end(Outcome.CLIENT_GONE)

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody decides any more: answer those who wait or come later, finish what is under way, and end."""
        self.owner_gone = True
        self.told_to_stop.set()
        if not self.config.done():
            self.config.cancel()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.placed(None)
