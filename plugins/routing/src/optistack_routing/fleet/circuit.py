"""A circuit breaker: stops sending requests to a replica that fails them, and tries again with one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Circuit(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(slots=True)
class Breaker:
    """Opens after ``failures`` in a row for ``open_s``, doubled each time a trial fails, up to ``longest_s``."""

    failures: int = 3
    open_s: float = 2.0
    longest_s: float = 60.0
    state: Circuit = Circuit.CLOSED
    in_a_row: int = 0
    until_s: float = 0.0
    pause_s: float = 0.0
    trial_out: bool = False

    @property
    def accepts(self) -> bool:
        return self.state is Circuit.CLOSED or (self.state is Circuit.HALF_OPEN and not self.trial_out)

    def sent(self) -> bool:
        """A request was sent; whether it is a trial."""
        if self.state is Circuit.HALF_OPEN:
            self.trial_out = True
            return True
        return False

    def succeeded(self) -> None:
        """An answer came, whatever its age: the replica serves."""
        if self.state is not Circuit.OPEN:
            self.state, self.in_a_row, self.pause_s, self.trial_out = Circuit.CLOSED, 0, 0.0, False

    def failed(self, now_s: float, *, trial: bool) -> None:
        self.in_a_row += 1
        if self.state is Circuit.HALF_OPEN:
            if trial:
                self._open(now_s)
        elif self.state is Circuit.CLOSED and self.in_a_row >= self.failures:
            self._open(now_s)

    def undecided(self, *, trial: bool) -> None:
        """The request ended without saying anything of the replica (its client left)."""
        if trial:
            self.trial_out = False

    def tick(self, now_s: float) -> None:
        if self.state is Circuit.OPEN and now_s >= self.until_s:
            self.state, self.trial_out = Circuit.HALF_OPEN, False

    def reset(self) -> None:
        self.state, self.in_a_row, self.pause_s, self.trial_out = Circuit.CLOSED, 0, 0.0, False

    def _open(self, now_s: float) -> None:
        self.pause_s = min(self.pause_s * 2 or self.open_s, self.longest_s)
        self.state, self.until_s, self.trial_out = Circuit.OPEN, now_s + self.pause_s, False
