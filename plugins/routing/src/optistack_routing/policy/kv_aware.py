"""The default policy: a turn goes where its session's KV is, until that costs more than it saves.

Moving a request from a replica to one with ``d`` requests less takes 2 (``d`` - 1) off the sum of the squares of the
loads, and computing its prompt again costs its tokens. The policy weighs one against the other: a turn leaves the home
that holds its newest prefix when another replica is lighter by a margin and by one request more for each
``tokens_per_request`` that would be computed again there. So new sessions, short prompts and homes a few turns behind
even out the load, and long prompts stay.
"""

from __future__ import annotations

import math

from optistack_routing.policy.base import Choice, Fleet, Reason, Replica, Request, Usage
from optistack_routing.policy.hashing import first
from optistack_routing.policy.parameters import Parameters
from optistack_routing.policy.persistence import Average, Persistence
from optistack_routing.policy.sessions import Session, SessionMap, Stay
from optistack_routing.policy.stateless import key_of, ready

_LAST_RESORT = 1e6
"""Requests that a replica without room for a cold prompt seems to carry."""


def _pressure(kv_utilisation: float) -> float:
    """k / (1 - k): small until a pool is nearly full, without bound when it is."""
    used = min(kv_utilisation, 0.999)
    return used / (1 - used)


class KvAware:
    """See the module; the numbers are those of :class:`Parameters`."""

    def __init__(self, parameters: Parameters | None = None) -> None:
        self.parameters = parameters or Parameters()
        self._sessions = SessionMap(self.parameters)
        self._loads = Persistence(self.parameters)
        self._fleet = Fleet()
        self._out: dict[int, tuple[Average, Stay | None]] = {}  # by the identity of the choice, which its lease holds

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        self._fleet = fleet
        key = key_of(request)
        session = None if key is None else self._sessions.get(key, now_s)
        cached = self._cached(request, session, fleet)
        if not cached:
            candidates = ready(request, fleet)
            lost = session is not None and any(home.tokens for home in session.homes.values())
            reason = Reason.FAILED_OVER if lost else Reason.PLACED
            return Choice(self._lightest(candidates, key, now_s).name, reason) if candidates else None
        newest = max(cached, key=lambda replica: (cached[replica], -self._cost(replica, 0)))
        began_s = session.began_s if session is not None else -math.inf
        if session is not None and not session.in_flight and self._loads.gives_up(newest, now_s):
            roomy = [
                replica
                for replica in ready(request, fleet)
                if self._takes_cold(replica, now_s) and not self._is_newcomer(replica, began_s, now_s)
            ]
            light = self._loads.lightest(roomy, now_s)
            if light is not None and light is not newest:
                self._loads.moved()
                return Choice(light.name, Reason.REHOMED, cached.get(light, 0))
        here = session.homes.get(newest.name) if session is not None else None
        return self._weigh(request, newest, here.in_flight if here is not None else 0, began_s, cached, fleet, now_s)

    @staticmethod
    def _cached(request: Request, session: Session | None, fleet: Fleet) -> dict[Replica, int]:
        """Tokens of the prompt that each replica which may take it is believed to hold, where that is any."""
        homes = session.homes if session is not None else {}
        tokens = {name: home.tokens for name, home in homes.items()}
        for name, held in (request.cached_tokens or {}).items():
            home = homes.get(name)
            # What is being computed there is not yet in the index, and will be.
            tokens[name] = max(held, home.tokens) if home is not None and home.in_flight else held
        cached = {}
        for name, held in tokens.items():
            replica = fleet.get(name) if held > 0 else None
            if replica is not None and replica.accepts and name not in request.avoid:
                cached[replica] = min(held, request.prompt_tokens)
        return cached

    def _weigh(
        self,
        request: Request,
        newest: Replica,
        at_once: int,
        began_s: float,
        cached: dict[Replica, int],
        fleet: Fleet,
        now_s: float,
    ) -> Choice:
        """Stay with the newest prefix, or go to where the difference in load is worth the tokens.

        ``at_once`` requests of the session are there already. Past the threshold a copy of the prefix is for all of
        them, so each pays its share of it.
        """
        p = self.parameters
        prompt = request.prompt_tokens
        thick = at_once >= p.split_requests
        share = 1 + at_once if thick else 1
        stay = self._cost(newest, (prompt - cached[newest]) / share)
        limit = stay - p.home_margin
        other: Replica | None = None
        for replica, held in cached.items():
            cost = self._cost(replica, (prompt - held) / share)
            if replica is not newest and cost <= limit:
                other, limit = replica, cost
        cold_limit = min(limit, stay - (p.home_margin if thick else p.overload_margin))
        # A cold replica costs its prompt at least, so that most turns need no look at the fleet.
        if cold_limit > prompt / share / p.tokens_per_request:
            cold = self._cold(request, prompt / share, cold_limit, began_s, cached, fleet, now_s)
            if cold is not None:
                return Choice(cold.name, Reason.SPLIT if thick else Reason.SPILLED)
        if other is not None:
            return Choice(other.name, Reason.OTHER_HOME, cached[other])
        return Choice(newest.name, Reason.HOME, cached[newest])

    def _cold(
        self,
        request: Request,
        tokens: float,
        limit: float,
        began_s: float,
        cached: dict[Replica, int],
        fleet: Fleet,
        now_s: float,
    ) -> Replica | None:
        """The lightest replica that holds nothing of the prompt, if it costs no more than ``limit``.

        A newcomer gets the session only where it would have left for another replica as well: that a replica joins
        moves nobody.
        """
        # What a replica carries is a part of its cost, and rules out nearly all of a large fleet by itself.
        most = limit - tokens / self.parameters.tokens_per_request + 1e-9
        avoid = request.avoid
        others = [
            replica
            for replica in fleet
            if replica.in_flight <= most and replica.accepts and replica.name not in avoid and replica not in cached
        ]
        found = self._light_enough(others, request, tokens, limit, now_s)
        if found is not None and self._is_newcomer(found, began_s, now_s):
            others = [replica for replica in others if not self._is_newcomer(replica, began_s, now_s)]
            if self._light_enough(others, request, tokens, limit, now_s) is None:
                return None
        return found

    def _light_enough(
        self, others: list[Replica], request: Request, tokens: float, limit: float, now_s: float
    ) -> Replica | None:
        cold = self._lightest(others, key_of(request), now_s) if others else None
        if cold is None or not self._takes_cold(cold, now_s) or self._cost(cold, tokens) > limit:
            return None
        return cold

    def _is_newcomer(self, replica: Replica, began_s: float, now_s: float) -> bool:
        """Whether it joined after the session began, and a short while ago."""
        return replica.joined_s > began_s and now_s - replica.joined_s < self.parameters.slow_start_s

    def _cost(self, replica: Replica, uncached_tokens: float) -> float:
        """In requests: what the replica carries and is known for, what waits there, and what it would compute again."""
        p = self.parameters
        tokens = p.pending_weight * replica.pending_prefill_tokens + uncached_tokens
        residents = self._sessions.residents.get(replica.name, 0)
        cost = replica.in_flight + p.session_weight * residents + tokens / p.tokens_per_request
        if replica.kv_utilisation:
            cost += p.kv_weight * _pressure(replica.kv_utilisation)
        return cost

    def _takes_cold(self, replica: Replica, now_s: float) -> bool:
        p = self.parameters
        if now_s - replica.joined_s < p.slow_start_s:
            return not replica.pending_prefill_tokens
        return replica.pending_prefill_tokens < p.cold_prefill_tokens

    def _lightest(self, replicas: list[Replica], key: str | None, now_s: float) -> Replica:
        """The cheapest replica for a prompt that it does not hold, with room for it if any has; ties by hash.

        The same sum as in ``_cost``, in a loop that hundreds of replicas can go through for each request.
        """
        p = self.parameters
        young_s = now_s - p.slow_start_s
        per_token = p.pending_weight / p.tokens_per_request
        per_session, residents = p.session_weight, self._sessions.residents.get
        least = _LAST_RESORT * 1e3
        ties: list[Replica] = []
        for replica in replicas:
            pending = replica.pending_prefill_tokens
            cost = replica.in_flight + per_session * residents(replica.name, 0)
            if pending:
                cost += pending * per_token
                if replica.joined_s > young_s or pending >= p.cold_prefill_tokens:
                    cost += _LAST_RESORT
            if cost > least:
                continue
            if replica.kv_utilisation:
                cost += p.kv_weight * _pressure(replica.kv_utilisation)
            if cost < least:
                least, ties = cost, [replica]
            elif cost == least:
                ties.append(replica)
        return ties[0] if len(ties) == 1 else first(key or "", ties)

    def placed(self, request: Request, choice: Choice, now_s: float) -> None:
        average, stay = self._loads.began(choice.replica, now_s), None
        key = key_of(request)
        if key is not None:
            replica = self._fleet.get(choice.replica)
            pool_tokens = replica.kv_tokens if replica is not None else None
            stay = self._sessions.placed(key, choice.replica, request.prompt_tokens, now_s, pool_tokens=pool_tokens)
        self._out[id(choice)] = average, stay

    def ended(self, request: Request, choice: Choice, now_s: float, *, served: bool, usage: Usage | None) -> None:
        if id(choice) not in self._out:
            return  # it failed to be noted
        average, stay = self._out.pop(id(choice))
        self._loads.ended(choice.replica, average, now_s)
        if stay is not None:
            self._sessions.ended(stay, choice.predicted_cached_tokens, now_s, served=served)

    def left(self, replica: str, now_s: float) -> None:
        self._loads.left(replica)
        self._sessions.left(replica)

    def finish_session(self, session: str) -> bool:
        return self._sessions.forget(session)

    def expire(self, now_s: float) -> None:
        self._sessions.expire(now_s)

    def sessions(self) -> dict[int, int]:
        return self._sessions.by_homes()
