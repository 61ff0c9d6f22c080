"""Where each session's KV is: a bounded map, in the order of the last request."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from optistack_routing.policy.parameters import Parameters
from optistack_routing.policy.shadow import Home, Shadow


@dataclass(slots=True, eq=False)
class Session:
    """``newest`` is the home that its last request went to, of which it counts as a resident."""

    began_s: float = 0.0
    homes: dict[str, Home] = field(default_factory=dict)
    in_flight: int = 0
    used_s: float = 0.0
    newest: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Stay:
    """A request of ``session`` at ``home``: the very ones, since others of their names may come after them."""

    key: str
    session: Session
    replica: str
    home: Home


class SessionMap:
    """``residents``: by replica, the sessions whose newest prefix it holds."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._shadows: dict[str, Shadow] = {}
        self._at: dict[str, set[Session]] = {}  # by replica: those with a home there
        self._by_homes: Counter[int] = Counter()
        self.residents: dict[str, int] = {}

    def get(self, key: str, now_s: float) -> Session | None:
        """The session, unless it is unknown or has been idle for too long."""
        session = self._sessions.get(key)
        return None if session is None or self._is_stale(session, now_s) else session

    def placed(
        self, key: str, replica: str, prompt_tokens: int, now_s: float, *, pool_tokens: int | None = None
    ) -> Stay:
        """A request of the session was sent to ``replica``, where its prompt will be. ``pool_tokens``: its KV pool."""
        if replica not in self._shadows:
            pool_tokens = self._parameters.kv_tokens or pool_tokens
            if pool_tokens is not None:
                self._shadows[replica] = Shadow(pool_tokens)
        session = self.get(key, now_s)
        if session is None:
            self.forget(key)
            session = self._sessions[key] = Session(now_s)
            self._by_homes[0] += 1
        self._sessions.move_to_end(key)
        session.used_s = now_s
        session.in_flight += 1
        home = session.homes.pop(replica, None)
        if home is None:
            home = Home()
            self._at.setdefault(replica, set()).add(session)
            self._by_homes[len(session.homes)] -= 1
            self._by_homes[len(session.homes) + 1] += 1
        session.homes[replica] = home
        home.in_flight += 1
        if session.newest != replica:
            self._reside(session, replica)
        self._hold(replica, home, max(1, prompt_tokens))  # an unknown length is a prefix all the same
        if len(session.homes) > self._parameters.max_homes:
            self._forget_a_home(session, replica)
        if len(self._sessions) > self._parameters.max_sessions:
            self.forget(next(iter(self._sessions)))
        return Stay(key, session, replica, home)

    def ended(self, stay: Stay, cached_tokens: int, now_s: float, *, served: bool) -> None:
        """The request has left; one that was not served leaves what was there before it, ``cached_tokens``."""
        session, home, replica = stay.session, stay.home, stay.replica
        if self._sessions.get(stay.key) is not session:
            return  # it was forgotten since, and another of its name owes nothing
        session.in_flight = max(0, session.in_flight - 1)
        session.used_s = now_s
        self._sessions.move_to_end(stay.key)
        if session.homes.get(replica) is not home:
            return
        home.in_flight = max(0, home.in_flight - 1)
        if not served and not home.in_flight:
            # Nobody knows how far its prefill came.
            self._hold(replica, home, min(home.tokens, cached_tokens))
            if not home.tokens:
                self._drop_home(session, replica)

    def left(self, replica: str) -> None:
        """The replica's KV is gone."""
        self._shadows.pop(replica, None)
        for session in list(self._at.get(replica, ())):
            self._drop_home(session, replica)
        self._at.pop(replica, None)
        self.residents.pop(replica, None)

    def forget(self, key: str) -> bool:
        """Whether there was something to forget."""
        session = self._sessions.pop(key, None)
        if session is None:
            return False
        self._reside(session, None)
        self._by_homes[len(session.homes)] -= 1
        for replica, home in session.homes.items():
            self._at[replica].discard(session)
            home.in_flight = 0  # what still runs will not be heard of, and must not hold its place in the pool for ever
        return True

    def expire(self, now_s: float) -> None:
        """Forget the sessions that have been idle for too long: they are at the head of the map."""
        while self._sessions:
            key, session = next(iter(self._sessions.items()))
            if session.in_flight and now_s - session.used_s > self._parameters.session_idle_s:
                session.used_s = now_s
                self._sessions.move_to_end(key)
            if not self._is_stale(session, now_s):
                return
            self.forget(key)

    def by_homes(self) -> dict[int, int]:
        """How many sessions have that many homes."""
        return {homes: count for homes, count in self._by_homes.items() if count}

    def _is_stale(self, session: Session, now_s: float) -> bool:
        return not session.in_flight and now_s - session.used_s > self._parameters.session_idle_s

    def _reside(self, session: Session, replica: str | None) -> None:
        """The session's newest prefix is on ``replica`` from now on, or nowhere."""
        if session.newest in self.residents:
            self.residents[session.newest] -= 1
        session.newest = replica
        if replica is not None:
            self.residents[replica] = self.residents.get(replica, 0) + 1

    def _drop_home(self, session: Session, replica: str) -> None:
        self._by_homes[len(session.homes)] -= 1
        del session.homes[replica]
        self._by_homes[len(session.homes)] += 1
        self._at[replica].discard(session)
        if session.newest == replica:
            self._reside(session, None)

    def _forget_a_home(self, session: Session, keep: str) -> None:
        """The one with the least of it goes; of equals, the one unused for longest."""
        idle = [name for name, home in session.homes.items() if name != keep and not home.in_flight]
        if idle:
            self._drop_home(session, min(idle, key=lambda name: session.homes[name].tokens))

    def _hold(self, replica: str, home: Home, tokens: int) -> None:
        shadow = self._shadows.get(replica)
        if shadow is None:
            home.tokens = tokens
        else:
            shadow.use(home, tokens)
