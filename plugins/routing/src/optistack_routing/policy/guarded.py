"""A policy that may fail: the request is placed by load, and the fault is logged."""

from __future__ import annotations

import logging

from optistack_routing.policy.base import Choice, Fleet, Policy, Request, Usage
from optistack_routing.policy.least_loaded import LeastLoaded

log = logging.getLogger("optistack.route")


class Guarded:
    """``policy`` as the router runs it: an error in it costs a request its KV, and neither the request nor a count."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._by_load = LeastLoaded()

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        try:
            return self.policy.choose(request, fleet, now_s)
        except Exception:
            log.exception("the policy failed to choose; the request goes by load")
            return self._by_load.choose(request, fleet, now_s)

    def placed(self, request: Request, choice: Choice, now_s: float) -> None:
        try:
            self.policy.placed(request, choice, now_s)
        except Exception:
            log.exception("the policy failed to note a placement")

    def ended(self, request: Request, choice: Choice, now_s: float, *, served: bool, usage: Usage | None) -> None:
        try:
            self.policy.ended(request, choice, now_s, served=served, usage=usage)
        except Exception:
            log.exception("the policy failed to note an end")

    def left(self, replica: str, now_s: float) -> None:
        try:
            self.policy.left(replica, now_s)
        except Exception:
            log.exception("the policy failed to forget a replica")

    def finish_session(self, session: str) -> bool:
        return self.policy.finish_session(session)

    def expire(self, now_s: float) -> None:
        try:
            self.policy.expire(now_s)
        except Exception:
            log.exception("the policy failed to expire sessions")

    def sessions(self) -> dict[int, int]:
        return self.policy.sessions()
