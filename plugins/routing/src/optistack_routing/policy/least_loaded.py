"""The lightest replica for each request: the most even load, and a session's KV found by chance only."""

from __future__ import annotations

from optistack_routing.policy.base import Choice, Fleet, Reason, Replica, Request, Usage


def load(replica: Replica) -> tuple[float, ...]:
    """What makes a replica heavy, most important first: requests, prefill still to do, and how full its KV pool is.

    The last is k / (1 - k), which is small until a pool is nearly full and without bound when it is.
    """
    used = min(replica.kv_utilisation or 0.0, 0.999)
    return (replica.in_flight, replica.pending_prefill_tokens, used / (1 - used))


class LeastLoaded:
    """Stateless but for a turn counter, which breaks ties so that equal replicas are used in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        ready = [replica for replica in fleet if replica.accepts and replica.name not in request.avoid]
        if not ready:
            return None
        self._turn += 1
        start = self._turn % len(ready)
        lightest = min(ready[start:] + ready[:start], key=load)
        return Choice(lightest.name, Reason.PLACED)

    def placed(self, request: Request, choice: Choice, now_s: float) -> None: ...

    def ended(self, request: Request, choice: Choice, now_s: float, *, served: bool, usage: Usage | None) -> None: ...

    def left(self, replica: str, now_s: float) -> None: ...

    def finish_session(self, session: str) -> bool:
        return False

    def expire(self, now_s: float) -> None: ...

    def sessions(self) -> dict[int, int]:
        return {}
