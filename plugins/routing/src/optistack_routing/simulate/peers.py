"""How other routers choose, written anew from their documentation and behaviour, to be compared in the same simulation.

Like our own policies here, each sees exact loads and is told when a session ends, which it seldom is in the field.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from optistack_routing.policy.base import Choice, Fleet, Policy, Reason, Replica, Request, Usage
from optistack_routing.policy.hashing import digest, first
from optistack_routing.policy.least_loaded import LeastLoaded
from optistack_routing.policy.stateless import Affinity, Stateless, ready
from optistack_routing.simulate.peers_prefix import BestMatch, PrefillAndDecode


class Sticky(Stateless):
    """A session stays where it was placed: vllm-router's ``sticky_least_loaded`` by sessions, sglang's ``manual`` with
    ``min_load`` by requests."""

    def __init__(self, by: str) -> None:
        self._by_sessions = by == "sessions"
        self._homes: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        candidates = ready(request, fleet)
        if not candidates:
            return None
        home = self._homes.get(request.session or "")
        if home is not None and any(replica.name == home for replica in candidates):
            return Choice(home, Reason.HOME)
        if self._by_sessions:
            least = min([self._counts.get(replica.name, 0) for replica in candidates])
            ties = [replica for replica in candidates if self._counts.get(replica.name, 0) == least]
        else:
            ties = lightest(candidates)
        return Choice(first(request.session or "", ties).name, Reason.PLACED)

    def placed(self, request: Request, choice: Choice, now_s: float) -> None:
        if request.session is not None and self._homes.get(request.session) != choice.replica:
            self.finish_session(request.session)
            self._homes[request.session] = choice.replica
            self._counts[choice.replica] = self._counts.get(choice.replica, 0) + 1

    def finish_session(self, session: str) -> bool:
        home = self._homes.pop(session, None)
        if home is not None:
            self._counts[home] -= 1
        return home is not None

    def sessions(self) -> dict[int, int]:
        return {1: len(self._homes)}


class Ring(Stateless):
    """vllm-router's ``consistent_hash``: a ring with 160 points a replica, whatever the load."""

    def __init__(self, points: int = 160) -> None:
        self._points = points
        self._names: list[str] = []
        self._ring: list[tuple[int, str]] = []

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        names = [replica.name for replica in ready(request, fleet)]
        if not names:
            return None
        if names != self._names:
            self._names = names
            self._ring = sorted((digest(f"{name}#{point}"), name) for name in names for point in range(self._points))
        at = bisect_left(self._ring, (digest(request.session or ""), ""))
        return Choice(self._ring[at % len(self._ring)][1], Reason.HOME)


class CapTwo(Stateless):
    """SMG's routing key override: at most two requests of a key on a replica, at most two replicas remembered; beyond
    them the lightest takes the place of the older one."""

    def __init__(self, cap: int = 2) -> None:
        self._cap = cap
        self._homes: dict[str, dict[str, int]] = {}

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        candidates = ready(request, fleet)
        if not candidates:
            return None
        homes = self._homes.get(request.session or "", {})
        known = {replica.name for replica in candidates}
        for number, (home, running) in enumerate(homes.items()):
            if home in known and running < self._cap:
                return Choice(home, Reason.OTHER_HOME if number else Reason.HOME)
        others = [replica for replica in candidates if replica.name not in homes] or candidates
        return Choice(lightest(others)[0].name, Reason.SPLIT if homes else Reason.PLACED)

    def placed(self, request: Request, choice: Choice, now_s: float) -> None:
        homes = self._homes.setdefault(request.session or "", {})
        homes[choice.replica] = homes.get(choice.replica, 0) + 1
        if len(homes) > 2:
            del homes[next(iter(homes))]

    def ended(self, request: Request, choice: Choice, now_s: float, *, served: bool, usage: Usage | None) -> None:
        homes = self._homes.get(request.session or "", {})
        if choice.replica in homes:
            homes[choice.replica] -= 1

    def finish_session(self, session: str) -> bool:
        return self._homes.pop(session, None) is not None

    def sessions(self) -> dict[int, int]:
        return {1: len(self._homes)}


class Homes(Stateless):
    """Up to ``homes`` replicas a session; the home that is chosen gives way above the fleet's mean plus ``margin``.

    ``lighter`` takes the lighter home and not the last used; with one home a move is a new pin.
    """

    def __init__(self, homes: int, margin: float, *, lighter: bool) -> None:
        self._most, self._margin, self._lighter = homes, margin, lighter
        self._homes: dict[str, list[str]] = {}

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        candidates = ready(request, fleet)
        if not candidates:
            return None
        by_name = {replica.name: replica for replica in candidates}
        homes = [by_name[home] for home in self._homes.get(request.session or "", []) if home in by_name]
        if not homes:
            return Choice(lightest(candidates)[0].name, Reason.PLACED)
        limit = sum([replica.in_flight for replica in candidates]) / len(candidates) + self._margin
        ranked = sorted(homes, key=lambda replica: replica.in_flight) if self._lighter else homes
        for replica in ranked:
            if replica.in_flight <= limit:
                return Choice(replica.name, Reason.HOME if replica is homes[0] else Reason.OTHER_HOME)
        light = lightest(candidates)[0]
        if light.in_flight + 2 > ranked[0].in_flight:
            return Choice(ranked[0].name, Reason.HOME)
        return Choice(light.name, Reason.SPILLED)

    def placed(self, request: Request, choice: Choice, now_s: float) -> None:
        homes = self._homes.setdefault(request.session or "", [])
        if choice.replica in homes:
            homes.remove(choice.replica)
        homes.insert(0, choice.replica)
        del homes[self._most :]

    def finish_session(self, session: str) -> bool:
        return self._homes.pop(session, None) is not None

    def sessions(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for homes in self._homes.values():
            counts[len(homes)] = counts.get(len(homes), 0) + 1
        return counts


def lightest(replicas: list[Replica]) -> list[Replica]:
    """Those with the fewest requests in flight."""
    least = min([replica.in_flight for replica in replicas])
    return [replica for replica in replicas if replica.in_flight == least]


class Peer(NamedTuple):
    """A policy to compare with, and whose it is."""

    make: Callable[[], Policy]
    whose: str


PEERS = {
    "consistent-hash": Peer(Ring, "vllm-router consistent_hash"),
    "sticky-least-sessions": Peer(lambda: Sticky("sessions"), "vllm-router sticky_least_loaded"),
    "sticky-least-running": Peer(lambda: Sticky("requests"), "sglang-router manual, min_load"),
    "cap-2": Peer(CapTwo, "SMG --routing-key-override"),
    "hrw-bounded-1.25": Peer(lambda: Affinity(1.25), "HRW with bounded load, as HAProxy's hash-balance-factor"),
    "prefill-and-decode": Peer(PrefillAndDecode, "dynamo's cost, without KV events"),
    "best-match": Peer(BestMatch, "aibrix prefix-cache"),
    "least-running": Peer(LeastLoaded, "least outstanding requests"),
    "repin+2": Peer(lambda: Homes(1, 2, lighter=False), "pin that moves above the mean + 2"),
    "repin+3": Peer(lambda: Homes(1, 3, lighter=False), "pin that moves above the mean + 3"),
    "last-home+2": Peer(lambda: Homes(2, 2, lighter=False), "two homes, the last first, above the mean + 2"),
    "last-home+3": Peer(lambda: Homes(2, 3, lighter=False), "two homes, the last first, above the mean + 3"),
    "last-home+1": Peer(lambda: Homes(2, 1, lighter=False), "two homes, the last first, above the mean + 1"),
    "lighter-home+1": Peer(lambda: Homes(2, 1, lighter=True), "two homes, the lighter, above the mean + 1"),
    "lighter-home+2": Peer(lambda: Homes(2, 2, lighter=True), "two homes, the lighter, above the mean + 2"),
}
