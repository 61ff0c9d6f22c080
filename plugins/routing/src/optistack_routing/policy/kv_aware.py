"""The default policy: a turn goes where its session's KV is, until that costs more than it saves.

A request on a replica that carries ``d`` requests more than another adds ``d - 1`` to what a move there would leave of
the sum of squares, and computing a prompt again costs its tokens. The policy weighs one against the other: a turn leaves
the home that holds its newest prefix when another replica is lighter by ``overload_margin`` and one request more for each
``tokens_per_request`` that it would have to compute again there. So short prompts, new sessions and homes that are a
few turns behind even out the load, and long prompts stay.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from optistack_routing.policy.base import Choice, Fleet, Reason, Replica, Request, Usage
from optistack_routing.policy.hashing import first
from optistack_routing.policy.parameters import Parameters
from optistack_routing.policy.persistence import Persistence
from optistack_routing.policy.shadow import Home, Shadow
from optistack_routing.policy.stateless import key_of, ready


@dataclass(slots=True, eq=False)
class _Session:
    homes: dict[str, Home] = field(default_factory=dict)
    in_flight: int = 0
    used_s: float = 0.0


class KvAware:
    """See the module; the numbers are those of :class:`Parameters`."""

    def __init__(self, parameters: Parameters | None = None) -> None:
        self.parameters = parameters or Parameters()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._shadows: dict[str, Shadow] = {}
        self._loads = Persistence(self.parameters)

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        key = key_of(request)
        session = None if key is None else self._sessions.get(key)
        if session is not None and self._is_stale(session, now_s):
            session = None
        cached = self._cached(request, session, fleet)
        if not cached:
            target = self._lightest(ready(request, fleet), request, now_s, key)
            if target is None:
                return None
            lost = session is not None and bool(session.homes)
            return Choice(target.name, Reason.FAILED_OVER if lost else Reason.PLACED)
        newest = max(cached, key=lambda replica: (cached[replica], -self._cost(replica, 0)))
        choice = self._unless_overloaded(request, session, newest, cached, fleet, now_s, key)
        return choice

    def _cached(self, request: Request, session: _Session | None, fleet: Fleet) -> dict[Replica, int]:
        """Tokens of the prompt that each replica which may take the request is believed to hold, where that is any."""
        if request.cached_tokens is not None:
            tokens = request.cached_tokens
        elif session is not None:
            tokens = {name: home.tokens for name, home in session.homes.items()}
        else:
            return {}
        known = ((fleet.get(name), min(held, request.prompt_tokens)) for name, held in tokens.items() if held)
        return {r: held for r, held in known if r is not None and r.accepts and r.name not in request.avoid}

    def _cost(self, replica: Replica, uncached_tokens: int) -> float:
        """In requests: what the replica carries, what waits there for prefill, and what it would have to compute."""
        p = self.parameters
        cost = replica.in_flight + (p.pending_weight * replica.pending_prefill_tokens + uncached_tokens) / p.tokens_per_request
        if replica.kv_utilisation:
            used = min(replica.kv_utilisation, 0.999)
            cost += p.kv_weight * used / (1 - used)
        return cost

    def _unless_overloaded(
        self,
        request: Request,
        session: _Session | None,
        newest: Replica,
        cached: dict[Replica, int],
        fleet: Fleet,
        now_s: float,
        key: str | None,
    ) -> Choice:
        p = self.parameters
        prompt = request.prompt_tokens
        stay = Choice(newest.name, Reason.HOME, cached[newest])
        here = session.homes.get(newest.name) if session is not None else None
        split = here is not None and here.in_flight >= p.split_requests
        limit = self._cost(newest, prompt - cached[newest]) - (1.0 if split else p.overload_margin)
        best: Replica | None = None
        for replica in cached:
            cost = self._cost(replica, prompt - cached[replica])
            if replica is not newest and cost <= limit:
                best, limit = replica, cost
        # A cold replica costs its whole prompt at least, so that most turns need no look at the fleet.
        if limit > prompt / p.tokens_per_request:
            cold = self._lightest([r for r in ready(request, fleet) if r not in cached], request, now_s, key)
            if cold is not None and self._cost(cold, prompt) <= limit:
                return Choice(cold.name, Reason.SPLIT if split else Reason.SPILLED)
        if best is not None:
            return Choice(best.name, Reason.OTHER_HOME, cached[best])
        if session is not None and not session.in_flight and self._loads.gives_up(newest, now_s):
            light = self._loads.lightest([r for r in ready(request, fleet) if self._takes_cold(r, now_s)], now_s)
            if light is not None and light is not newest:
                return Choice(light.name, Reason.REHOMED, cached.get(light, 0))
        return stay

    def _takes_cold(self, replica: Replica, now_s: float) -> bool:
        p = self.parameters
        if now_s - replica.joined_s < p.slow_start_s:
            return replica.pending_prefill_tokens == 0
        return replica.pending_prefill_tokens < p.cold_prefill_tokens

    def _lightest(self, replicas: list[Replica], request: Request, now_s: float, key: str | None) -> Replica | None:
        """The replica for a prompt that is nowhere: the cheapest that has room for a cold one, ties by hash of the key."""
        if not replicas:
            return None
        p = self.parameters
        young_s = now_s - p.slow_start_s
        per_token = p.pending_weight / p.tokens_per_request
        least, ties = float("inf"), [replicas[0]]
        for replica in replicas:
            pending = replica.pending_prefill_tokens
            cost = replica.in_flight + pending * per_token
            if pending and (replica.joined_s > young_s or pending >= p.cold_prefill_tokens):
                cost += 1e6  # the last resort
            if cost <= least:
                if replica.kv_utilisation:
                    used = min(replica.kv_utilisation, 0.999)
                    cost += p.kv_weight * used / (1 - used)
                if cost < least:
                    least, ties = cost, [replica]
                elif cost == least:
                    ties.append(replica)
        return ties[0] if len(ties) == 1 else first(key or "", ties)

    def placed(self, request: Request, choice: Choice, now_s: float) -> None:
        self._loads.changed(choice.replica, 1, now_s)
        key = key_of(request)
        if key is None:
            return
        session = self._sessions.get(key)
        if session is None or self._is_stale(session, now_s):
            session = self._sessions[key] = _Session()
        self._sessions.move_to_end(key)
        session.used_s = now_s
        session.in_flight += 1
        home = session.homes.pop(choice.replica, None) or Home()
        session.homes[choice.replica] = home
        home.in_flight += 1
        self._hold(choice.replica, home, request.prompt_tokens)
        if len(session.homes) > self.parameters.max_homes:
            self._forget_a_home(session, choice.replica)
        if len(self._sessions) > self.parameters.max_sessions:
            self._sessions.popitem(last=False)

    def _hold(self, replica: str, home: Home, tokens: int) -> None:
        if self.parameters.kv_tokens is None:
            home.tokens = tokens
            return
        shadow = self._shadows.get(replica)
        if shadow is None:
            shadow = self._shadows[replica] = Shadow(self.parameters.kv_tokens)
        shadow.use(home, tokens)

    @staticmethod
    def _forget_a_home(session: _Session, keep: str) -> None:
        """The one with the least of it goes; of equals, the one unused for longest."""
        idle = [name for name, home in session.homes.items() if name != keep and not home.in_flight]
        if idle:
            del session.homes[min(idle, key=lambda name: session.homes[name].tokens)]

    def ended(self, request: Request, choice: Choice, now_s: float, *, served: bool, usage: Usage | None) -> None:
        self._loads.changed(choice.replica, -1, now_s)
        key = key_of(request)
        session = None if key is None else self._sessions.get(key)
        if session is None:
            return
        session.in_flight = max(0, session.in_flight - 1)
        session.used_s = now_s
        home = session.homes.get(choice.replica)
        if home is None:
            return
        home.in_flight = max(0, home.in_flight - 1)
        if not served and not home.in_flight:
            # Nobody knows how far its prefill came: believe in what was there before.
            home.tokens = min(home.tokens, choice.predicted_cached_tokens)
            if not home.tokens:
                del session.homes[choice.replica]

    def left(self, replica: str, now_s: float) -> None:
        self._shadows.pop(replica, None)
        self._loads.left(replica)
        for session in self._sessions.values():
            session.homes.pop(replica, None)

    def finish_session(self, session: str) -> bool:
        return self._sessions.pop(session, None) is not None

    def _is_stale(self, session: _Session, now_s: float) -> bool:
        return not session.in_flight and now_s - session.used_s > self.parameters.session_idle_s

    def expire(self, now_s: float) -> None:
        # The map is in the order of the last request, so that the idle ones are at its head.
        while self._sessions:
            key, session = next(iter(self._sessions.items()))
            if session.in_flight and now_s - session.used_s > self.parameters.session_idle_s:
                session.used_s = now_s
                self._sessions.move_to_end(key)
            if not self._is_stale(session, now_s):
                return
            del self._sessions[key]

    def sessions(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for session in self._sessions.values():
            homes = len(session.homes)
            counts[homes] = counts.get(homes, 0) + 1
        return counts
