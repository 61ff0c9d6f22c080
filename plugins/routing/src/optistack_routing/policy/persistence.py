"""Load that lasts: a replica whose sessions are busier than others', and how fast it may give them up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from optistack_routing.policy.base import Replica
from optistack_routing.policy.parameters import Parameters


@dataclass(slots=True)
class Average:
    """Requests in flight, averaged with an exponential window."""

    value: float = 0.0
    in_flight: int = 0
    at_s: float = 0.0

    def at(self, now_s: float, window_s: float) -> float:
        kept = math.exp(-max(0.0, now_s - self.at_s) / window_s)
        return self.in_flight + (self.value - self.in_flight) * kept

    def change(self, by: int, now_s: float, window_s: float) -> None:
        self.value = self.at(now_s, window_s)
        self.at_s = now_s
        self.in_flight = max(0, self.in_flight + by)


class Persistence:
    """Averages of each replica's load and the fleet's, and the allowance of moves that they justify."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._replicas: dict[str, Average] = {}
        self._fleet = Average()
        self._moves = 0.0
        self._moves_at_s: float | None = None

    def began(self, replica: str, now_s: float) -> Average:
        """``replica`` carries one request more; the average that :meth:`ended` is told."""
        window_s = self._parameters.rehome_window_s
        average = self._replicas.get(replica)
        if average is None:
            average = self._replicas[replica] = Average(at_s=now_s)
        average.change(1, now_s, window_s)
        self._fleet.change(1, now_s, window_s)
        return average

    def ended(self, replica: str, average: Average, now_s: float) -> None:
        window_s = self._parameters.rehome_window_s
        if self._replicas.get(replica) is average:  # a request may outlive its replica's place in the fleet
            average.change(-1, now_s, window_s)
        self._fleet.change(-1, now_s, window_s)

    def left(self, replica: str) -> None:
        gone = self._replicas.pop(replica, None)
        if gone is not None:
            self._fleet.value = max(0.0, self._fleet.value - gone.value)

    def gives_up(self, replica: Replica, now_s: float) -> bool:
        """Whether ``replica`` should lose an idle session now; :meth:`moved` says that it has."""
        p = self._parameters
        average = self._replicas.get(replica.name)
        if average is None or not p.rehomes_per_s:
            return False
        mean = self._fleet.at(now_s, p.rehome_window_s) / max(1, len(self._replicas))
        if average.at(now_s, p.rehome_window_s) - mean < p.rehome_margin or replica.in_flight <= mean:
            return False
        rate = p.rehomes_per_s * len(self._replicas)
        since_s = 0.0 if self._moves_at_s is None else now_s - self._moves_at_s
        self._moves = min(max(1.0, rate), self._moves + since_s * rate) if self._moves_at_s is not None else 1.0
        self._moves_at_s = now_s
        return self._moves >= 1.0

    def moved(self) -> None:
        """A session has left for another replica, which uses up a move of the allowance."""
        self._moves -= 1.0

    def lightest(self, replicas: list[Replica], now_s: float) -> Replica | None:
        """The replica with the lowest average; one that was never used counts what it carries."""
        window_s = self._parameters.rehome_window_s

        def average(replica: Replica) -> float:
            known = self._replicas.get(replica.name)
            return max(replica.in_flight, known.at(now_s, window_s) if known else 0.0)

        return min(replicas, key=average) if replicas else None
