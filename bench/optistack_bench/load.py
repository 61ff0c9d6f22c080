"""Play a workload's sessions: a fixed number of users (closed loop), or sessions that start at given times (open)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from time import perf_counter

from optistack_bench.client import CONNECTION_ERRORS, TIMEOUT, Client
from optistack_bench.conversation import Conversation
from optistack_bench.records import Record, record_of
from optistack_bench.result import load_name
from optistack_bench.supply import Supply
from optistack_bench.workload import Session, Workload


@dataclass(frozen=True)
class Loop:
    """How sessions are started.

    ``users``  closed loop: so many at once, each takes the next session when it has finished one
    ``rate``   open loop: sessions a second, started at exponential intervals whatever becomes of the others; or
               ``"recorded"``: when the trace says
    """

    users: int = 1
    rate: float | str | None = None

    @property
    def name(self) -> str:
        return load_name(self.users, self.rate)

    def arrivals_s(self, sessions: Sequence[Session]) -> float:
        """About how long an open loop takes until the last of ``sessions`` has begun; 0 in a closed one."""
        if isinstance(self.rate, float):
            return len(sessions) / self.rate
        starts_s = [session.start_s or 0.0 for session in sessions]
        return max(starts_s) - min(starts_s) if self.rate else 0.0


@dataclass
class Played:
    """What happened. ``full_s`` is the time until which every user had work; ``active_s`` the integral of the requests
    in flight until then, counted apart from the records (in request-seconds). ``ended`` says why it was broken off: all
    times are then those at which the server went, and not when that was certain."""

    records: list[Record] = field(default_factory=list)
    wall_s: float = 0.0
    full_s: float = 0.0
    active_s: float = 0.0
    ended: str = ""


@dataclass
class _Flights:
    """Requests in flight, integrated over time."""

    count: int = 0
    integral: float = 0.0
    since_s: float = field(default_factory=perf_counter)

    def change(self, by: int) -> None:
        now_s = perf_counter()
        self.integral += self.count * (now_s - self.since_s)
        self.count, self.since_s = self.count + by, now_s


@dataclass
class _Server:
    """One that sessions are sent to. ``last`` is when it answered last, ``lost`` when a connection to it failed first
    after that, each in seconds and with the integral of the requests in flight then."""

    client: Client
    last: tuple[float, float] = (0.0, 0.0)
    lost: tuple[float, float] | None = None

    def note(self, record: Record, integral: float) -> None:
        if record.error in CONNECTION_ERRORS:
            self.lost = self.lost or (record.end_s, integral)
        elif record.error != TIMEOUT:
            self.last, self.lost = (record.end_s, integral), None


def server_of(number: int, servers: int) -> int:
    """Which of ``servers`` session ``number`` of an open loop is sent to: each in turn, and every round begins one
    further, since the domains of a workload take turns too and no server shall have one alone."""
    return (number + number // servers) % servers


class Player:
    """Plays one workload once. Each session is sent to one of ``clients``, whole and with its sub-agents: in a closed
    loop to that of its user, so that no server has nothing to do while another one has the users of two.

    ``run`` is behind every session's name in its header: a router would send a session of the repeat before to where
    its KV was. ``on_record`` is told each request when it is over; ``alive`` is asked, after a connection failed,
    whether anybody still serves at that URL: ``""``, or why not."""

    def __init__(
        self,
        clients: Sequence[Client],
        loop: Loop,
        *,
        seed: int,
        run: int = 0,
        on_record: Callable[[Record], None],
        alive: Callable[[str], Awaitable[str]],
    ) -> None:
        self._servers = [_Server(client) for client in clients]
        self._loop, self._seed, self._run = loop, seed, run
        self._on_record, self._alive = on_record, alive
        self._played = Played()
        self._flights = _Flights()
        self._zero_s = 0.0
        self._dead = asyncio.Event()
        self._died: tuple[float, float] | None = None

    async def play(self, workload: Workload, supply: Supply | None = None) -> Played:
        """Play it to its end, or until the server is gone; in a closed loop what ``supply`` hands out, if that is
        given. Cancelled, it closes its connections and keeps nothing. Raises InputError where ``supply`` cannot make
        more."""
        self._flights = _Flights()
        self._zero_s = perf_counter()
        supply = supply or Supply(workload.sessions)
        work = self._open(workload) if self._loop.rate is not None else self._closed(supply, len(workload.sessions))
        main = asyncio.ensure_future(work)
        death = asyncio.ensure_future(self._dead.wait())
        try:
            await asyncio.wait({main, death}, return_when=asyncio.FIRST_COMPLETED)
            if main.done():
                main.result()
        finally:
            for task in (main, death):
                task.cancel()
            await asyncio.gather(main, death, return_exceptions=True)
            for server in self._servers:
                server.client.close()
        played = self._played
        played.wall_s = perf_counter() - self._zero_s
        self._note_full()
        if self._died is not None:
            died_s, integral = self._died
            played.wall_s = died_s
            if played.full_s > died_s:
                played.full_s, played.active_s = died_s, integral
        return played

    async def _closed(self, supply: Supply, sessions: int) -> None:
        async def user(server: _Server) -> None:
            while (session := await supply.next()) is not None:
                await self._session(session, server)
            self._note_full()

        try:
            async with asyncio.TaskGroup() as users:
                for number in range(min(self._loop.users, sessions)):
                    users.create_task(user(self._servers[number % len(self._servers)]))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group

    async def _open(self, workload: Workload) -> None:
        random = Random(self._seed)
        at_s = 0.0
        first_s = min(session.start_s or 0.0 for session in workload.sessions)
        async with asyncio.TaskGroup() as users:
            for number, session in enumerate(workload.sessions):
                if isinstance(self._loop.rate, float):
                    at_s += random.expovariate(self._loop.rate)
                else:
                    at_s = (session.start_s or 0.0) - first_s
                await asyncio.sleep(max(0.0, self._zero_s + at_s - perf_counter()))
                server = self._servers[server_of(number, len(self._servers))]
                users.create_task(self._session(session, server))
            self._note_full()

    def _note_full(self) -> None:
        """The first time that somebody has no more work: until then the load was as asked."""
        if not self._played.full_s:
            self._flights.change(0)
            self._played.full_s = perf_counter() - self._zero_s
            self._played.active_s = self._flights.integral

    async def _session(self, session: Session, server: _Server) -> None:
        chat = Conversation()
        for number, turn in enumerate(session.turns):
            await asyncio.sleep(turn.think_s)
            async with asyncio.TaskGroup() as forks:
                for fork in turn.forks:
                    forks.create_task(self._session(fork, server))
                self._flights.change(1)
                try:
                    answer = await server.client.ask(
                        chat.ask(turn) if turn.text else turn.prompt,
                        max_tokens=turn.output_tokens,
                        session=f"{session.name}.{self._run}",
                    )
                finally:
                    self._flights.change(-1)
                if turn.text:
                    turn = replace(turn, reusable_tokens=chat.known_tokens if number else turn.reusable_tokens)
                    chat.answered(turn, answer)
                record = record_of(answer, session, number, turn, self._zero_s, turn.think_s)
                self._played.records.append(record)
                self._on_record(record)
                server.note(record, self._flights.integral)
                if answer.connection_failed:
                    await self._check(server)

    async def _check(self, server: _Server) -> None:
        why = await self._alive(server.client.url)
        if why and not self._dead.is_set():
            self._played.ended = f"The server is gone: {why}"
            self._died = server.lost or server.last
            self._dead.set()
        if self._dead.is_set():
            await asyncio.Event().wait()  # play() cancels everybody
