"""Where a request asks for a replica, waits when there is none, and says how it went."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import Protocol

from optistack_routing.fleet.roster import Member, Roster
from optistack_routing.policy.base import Choice, Request, Usage
from optistack_routing.policy.ledger import Lease, Ledger


class Outcome(StrEnum):
    """How a try ended, and a request with its last one."""

    SERVED = "served"
    ERROR = "error"  # answered to its end, with a status from 400 to 499
    FAILED = "failed"  # answered to its end, with a status from 500 on
    CLIENT_GONE = "client_gone"
    UNREACHABLE = "unreachable"  # no connection: the request was never sent
    BROKEN = "broken"  # the connection was lost, or what came was no HTTP
    TIMED_OUT = "timed_out"
    TURNED_AWAY = "turned_away"  # answered with a status that is tried elsewhere
    UNPLACED = "unplaced"  # there was no try: no replica accepted requests


FAULTS = frozenset((Outcome.UNREACHABLE, Outcome.BROKEN, Outcome.TIMED_OUT, Outcome.TURNED_AWAY, Outcome.FAILED))
"""Outcomes that speak against the replica."""


class Placement(Protocol):
    """A request's place on a replica, held from the decision until :meth:`end`."""

    choice: Choice

    def first_byte(self, *, well: bool = True) -> None:
        """``well``: the replica serves; an answer with a status from 500 on does not say so."""

    def end(self, outcome: Outcome, usage: Usage | None = None) -> None: ...


class Waiter(Protocol):
    """Whoever asks. ``request`` is what is asked for."""

    request: Request

    def placed(self, placement: Placement | None) -> None:
        """Here is a place; or None: no replica accepts requests, and waiting has not helped."""


class Desk(Protocol):
    def ask(self, waiter: Waiter) -> None:
        """Answers by ``waiter.placed``, at once or later."""

    def withdraw(self, waiter: Waiter) -> None:
        """``waiter`` does not want a place any more."""


@dataclass(slots=True)
class Place:
    """A lease, with what it means for the health of the replica."""

    desk: LocalDesk
    lease: Lease
    member: Member
    trial: bool
    choice: Choice
    ended: bool = False

    def first_byte(self, *, well: bool = True) -> None:
        self.lease.first_byte()
        if well:
            self._serves()

    def _serves(self) -> None:
        breaker = self.member.breaker
        if breaker.in_a_row or self.trial:
            breaker.succeeded()
            self.trial = False
            self.desk.roster.settle(self.member, monotonic())

    def end(self, outcome: Outcome, usage: Usage | None = None) -> None:
        """A second call does nothing."""
        if self.ended:
            return
        self.ended = True
        now_s = monotonic()
        member = self.member
        member.out -= 1
        if outcome in (Outcome.SERVED, Outcome.ERROR):  # an answer without a body has no first byte
            self._serves()
        self.lease.end(now_s, served=outcome is Outcome.SERVED, usage=usage)
        if outcome in FAULTS:
            member.breaker.failed(now_s, trial=self.trial)
            self.desk.roster.settle(member, now_s)
            self.desk.roster.probe(member)
        elif self.trial:
            member.breaker.undecided(trial=True)
            self.desk.roster.settle(member, now_s)
        if member.leaving:
            self.desk.roster.tick_member(member, now_s)
        if self.desk.waiting:
            self.desk.serve()


class LocalDesk:
    """The desk of the process that owns the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        roster: Roster,
        *,
        queue_s: float = 10.0,
        queue_length: int = 1000,
        decided: Callable[[Choice], None] = lambda choice: None,
    ) -> None:
        self.ledger = ledger
        self.roster = roster
        self.waiting: deque[tuple[float, Waiter]] = deque()
        self._queue_s = queue_s
        self._queue_length = queue_length
        self._decided = decided
        roster.changed = self.serve

    def ask(self, waiter: Waiter) -> None:
        now_s = monotonic()
        place = None if self.waiting else self._place(waiter.request, now_s)
        if place is None and not waiter.request.avoid and len(self.waiting) < self._queue_length and self._queue_s > 0:
            self.waiting.append((now_s + self._queue_s, waiter))
            return
        if place is None and self.waiting:
            place = self._place(waiter.request, now_s)  # a retry, which has waited before
        waiter.placed(place)

    def withdraw(self, waiter: Waiter) -> None:
        for entry in self.waiting:
            if entry[1] is waiter:
                self.waiting.remove(entry)
                return

    def serve(self) -> None:
        """Place those who wait, the first come first."""
        now_s = monotonic()
        while self.waiting:
            place = self._place(self.waiting[0][1].request, now_s)
            if place is None:
                return
            self.waiting.popleft()[1].placed(place)

    def tick(self, now_s: float) -> None:
        self.serve()
        while self.waiting and self.waiting[0][0] <= now_s:
            self.waiting.popleft()[1].placed(None)

    def _place(self, request: Request, now_s: float) -> Place | None:
        lease = self.ledger.place(request, now_s)
        if lease is None:
            return None
        member = self.roster.members[lease.replica.name]
        member.out += 1
        trial = member.breaker.sent()
        if trial:
            self.roster.settle(member, now_s)
        self._decided(lease.choice)
        return Place(self, lease, member, trial, lease.choice)
