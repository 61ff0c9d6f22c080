"""Policies without a memory of sessions: affinity by hash, round robin, random."""

from __future__ import annotations

import math
from random import Random

from optistack_routing.policy.base import Choice, Fleet, Reason, Replica, Request, Usage
from optistack_routing.policy.hashing import first
from optistack_routing.policy.least_loaded import LeastLoaded


class Stateless:
    """What a policy without sessions has nothing to do for."""

    def placed(self, request: Request, choice: Choice, now_s: float) -> None: ...

    def ended(self, request: Request, choice: Choice, now_s: float, *, served: bool, usage: Usage | None) -> None: ...

    def left(self, replica: str, now_s: float) -> None: ...

    def finish_session(self, session: str) -> bool:
        return False

    def expire(self, now_s: float) -> None: ...

    def sessions(self) -> dict[int, int]:
        return {}


def ready(request: Request, fleet: Fleet) -> list[Replica]:
    """The replicas that may be given ``request``."""
    if not request.avoid:
        return [replica for replica in fleet.replicas.values() if replica.accepts]
    return [replica for replica in fleet.replicas.values() if replica.accepts and replica.name not in request.avoid]


def key_of(request: Request) -> str | None:
    """What stands for the request's KV: its session, else the head of its prompt, else nothing."""
    if request.session is not None:
        return request.session
    return None if request.prefix is None else "prefix:" + request.prefix.hex()


class Affinity(Stateless):
    """Rendezvous hashing with bounded load: the first replica in the session's own order that is below the bound.

    The bound is ceil(``load_bound`` * (requests in flight + 1) / replicas), as in Mirrokni, Thorup and Zadimoghaddam,
    "Consistent hashing with bounded loads", SODA 2018. There is always a replica below it. A replica that joins a fleet
    below the bound takes one session in N, and no session moves between the others.
    """

    def __init__(self, load_bound: float = 1.25) -> None:
        self._bound = load_bound
        self._keyless = LeastLoaded()

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        key = key_of(request)
        if key is None:
            return self._keyless.choose(request, fleet, now_s)
        candidates = ready(request, fleet)
        if not candidates:
            return None
        best = first(key, candidates)
        if math.isinf(self._bound):
            return Choice(best.name, Reason.HOME)
        total = sum([replica.in_flight for replica in candidates])
        most = math.ceil(self._bound * (total + 1) / len(candidates))
        if best.in_flight < most:
            return Choice(best.name, Reason.HOME)
        return Choice(first(key, [r for r in candidates if r.in_flight < most]).name, Reason.SPILLED)


class RoundRobin(Stateless):
    """Each replica in its turn."""

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        candidates = ready(request, fleet)
        if not candidates:
            return None
        self._turn += 1
        return Choice(candidates[self._turn % len(candidates)].name, Reason.PLACED)


class Uniform(Stateless):
    """Any replica, each as likely as the other."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        candidates = ready(request, fleet)
        return Choice(self._random.choice(candidates).name, Reason.PLACED) if candidates else None
