"""The owner's side of a worker: its questions, and what it holds, which ends when it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from optistack_routing.admin.state import snapshot
from optistack_routing.fleet.desk import Desk, Outcome, Placement
from optistack_routing.policy.base import Request, Usage
from optistack_routing.proxy.record import Recorder
from optistack_routing.workers.wire import Wire


@dataclass(eq=False)
class Question:
    """One request of a worker that waits or has a place."""

    link: WorkerLink
    number: int
    request: Request
    place: Placement | None = None

    def placed(self, placement: Placement | None) -> None:
        self.link.answer(self, placement)


@dataclass(eq=False)
class WorkerLink(Wire):
    """``lost`` is called when the worker has gone, after everything that it held was given back."""

    desk: Desk
    lost: Callable[[WorkerLink], None]
    counts: dict[str, Any] = field(default_factory=lambda: snapshot(Recorder()))
    held: dict[int, Question] = field(default_factory=dict)
    alive: bool = True

    def __post_init__(self) -> None:
        super().__init__()

    def heard(self, message: dict[str, Any]) -> None:
        if "ask" in message:
            request = Request(
                session=message["session"],
                prompt_tokens=message["tokens"],
                prefix=bytes.fromhex(message["prefix"]) if message["prefix"] is not None else None,
                cached_tokens=message["cached"],
                avoid=frozenset(message["avoid"]),
            )
            question = self.held[message["ask"]] = Question(self, message["ask"], request)
            self.desk.ask(question)
        elif "counts" in message:
            self.counts = message["counts"]
        elif "first" in message:
            self._place(message["first"]).first_byte(well=message["well"])
        elif "end" in message:
            usage = Usage(*message["usage"]) if "usage" in message else None
            place = self._place(message["end"])
            del self.held[message["end"]]
            place.end(Outcome(message["outcome"]), usage)
        elif "withdraw" in message:
            waiting = self.held.get(message["withdraw"])
            if waiting is not None and waiting.place is None:  # with a place, the worker gives it back
                del self.held[waiting.number]
                self.desk.withdraw(waiting)

    def answer(self, question: Question, placement: Placement | None) -> None:
        if not self.alive:
            if placement is not None:
                placement.end(Outcome.CLIENT_GONE)
            return
        question.place = placement
        if placement is None:
            del self.held[question.number]
            self.say({"place": question.number, "replica": None})
            return
        choice = placement.choice
        self.say(
            {
                "place": question.number,
                "replica": choice.replica,
                "reason": choice.reason,
                "predicted": choice.predicted_cached_tokens,
            }
        )

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = False
        held, self.held = self.held, {}
        for question in held.values():
            if question.place is None:
                self.desk.withdraw(question)
            else:
                question.place.end(Outcome.CLIENT_GONE)
        # What it had counted stays counted; what it had under way is gone.
        self.counts = {**self.counts, "connections": 0, "in_flight": 0}
        self.lost(self)

    def _place(self, number: int) -> Placement:
        place = self.held[number].place
        assert place is not None, "a worker ended what it had not been given"
        return place
