"""How evenly requests are spread, measured exactly between any two changes."""

from __future__ import annotations

from optistack_routing.simulate.result import Tally


class Loads:
    """Requests in flight by replica, their sum and the sum of their squares."""

    def __init__(self, tally: Tally, from_s: float) -> None:
        self._tally = tally
        self._at_s = from_s
        self._from_s = from_s
        self._loads: list[int] = []
        self._since_s: list[float] = []
        self._live = 0
        self._sum = 0
        self._squares = 0

    def join(self, now_s: float) -> int:
        """A replica more; its index."""
        self._advance(now_s)
        self._loads.append(0)
        self._since_s.append(now_s)
        self._live += 1
        return len(self._loads) - 1

    def leave(self, index: int, now_s: float) -> None:
        """The replica counts no more."""
        self._advance(now_s)
        self._note(index, now_s)
        self._sum -= self._loads[index]
        self._squares -= self._loads[index] ** 2
        self._live -= 1
        self._since_s[index] = float("inf")

    def change(self, index: int, by: int, now_s: float) -> None:
        """The replica carries that many requests more."""
        if self._since_s[index] == float("inf"):
            self._loads[index] += by
            return
        self._advance(now_s)
        self._note(index, now_s)
        load = self._loads[index]
        self._loads[index] = load + by
        self._sum += by
        self._squares += by * (2 * load + by)

    def close(self, now_s: float) -> None:
        """Account for everything until now."""
        self._advance(now_s)
        for index, since_s in enumerate(self._since_s):
            if since_s != float("inf"):
                self._note(index, now_s)

    def _advance(self, now_s: float) -> None:
        seconds = now_s - self._at_s
        if seconds <= 0 or not self._live:
            return
        mean = self._sum / self._live
        self._tally.mean_s += mean * seconds
        self._tally.variance_s += (self._squares / self._live - mean * mean) * seconds
        self._tally.seconds += seconds
        self._at_s = now_s

    def _note(self, index: int, now_s: float) -> None:
        seconds = now_s - max(self._since_s[index], self._from_s)
        if seconds > 0:
            at = self._tally.at_load_s
            load = self._loads[index]
            at[load] = at.get(load, 0.0) + seconds
        self._since_s[index] = now_s
