"""One router process: everything that runs in it, put together, started and stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from dataclasses import dataclass, field
from time import monotonic

from optistack_routing.fleet.circuit import Breaker
from optistack_routing.fleet.desk import Desk, LocalDesk
from optistack_routing.fleet.health import Probes
from optistack_routing.fleet.roster import Roster, Source
from optistack_routing.http.server import Limits
from optistack_routing.policy.ledger import Ledger
from optistack_routing.proxy.front import Front, Settings
from optistack_routing.proxy.record import Recorder
from optistack_routing.proxy.session import Reader
from optistack_routing.proxy.upstream import Pools
from optistack_routing.router.config import KEY_VARIABLE, UPSTREAM_KEY_VARIABLE, Config, read_keys
from optistack_routing.router.listen import client_tls, listen, server_tls
from optistack_routing.router.policy import policy_of

log = logging.getLogger("optistack.route")

TICK_S = 0.25


@dataclass
class Fleet:
    """What there is once, in the process that decides: replicas, ledger, probes."""

    config: Config
    ledger: Ledger
    roster: Roster
    desk: LocalDesk
    probes: Probes
    _expire_s: float = 0.0

    def start(self, now_s: float) -> None:
        for url in self.config.replicas:
            self.roster.add(url, Source.CONFIG, now_s)

    def tick(self, now_s: float) -> None:
        self.roster.tick(now_s)
        if self.config.health_path:
            self.probes.tick(now_s)
        self.desk.tick(now_s)
        if now_s >= self._expire_s:
            self._expire_s = now_s + 1.0
            self.ledger.policy.expire(now_s)

    def ready(self) -> bool:
        return any(replica.accepts for replica in self.ledger.fleet)

    async def stop(self) -> None:
        await self.probes.stop()


def build_fleet(config: Config) -> Fleet:
    """Raises InputError."""
    ledger = Ledger(policy_of(config.policy, config.parameters, config.seed))
    roster = Roster(
        ledger,
        lambda: Breaker(config.breaker_failures, config.breaker_open_s, config.breaker_longest_s),
        checks_health=bool(config.health_path),
    )
    keys = read_keys(config.upstream_api_key_file, UPSTREAM_KEY_VARIABLE)
    probes = Probes(
        roster,
        config.health_path,
        config.health_every_s,
        config.health_timeout_s,
        config.health_failures,
        tls=client_tls(config.upstream_ca),
        authorization=b"Bearer " + keys[0] if keys else None,
    )
    if config.health_path:
        roster.probe = probes.ask
    desk = LocalDesk(ledger, roster, queue_s=config.queue_s, queue_length=config.queue_length)
    return Fleet(config, ledger, roster, desk, probes)


@dataclass
class FrontSide:
    """The data plane of one process."""

    settings: Settings
    drain_s: float
    tls: ssl.SSLContext | None = None
    servers: list[asyncio.Server] = field(default_factory=list)

    async def serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_server(lambda: Front(self.settings), sock=listener, ssl=self.tls))

    def tick(self, now_s: float) -> None:
        for connection in list(self.settings.connections):
            connection.tick(now_s)
        self.settings.pools.tick(now_s)

    async def drain(self) -> None:
        """Take no new connection and no new request; return when those under way have ended, or ``drain_s`` is over."""
        self.settings.draining = True
        for server in self.servers:
            server.close()
        until_s = monotonic() + self.drain_s
        for connection in list(self.settings.connections):
            connection.drain()
        while self.settings.connections and monotonic() < until_s:
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        for connection in list(self.settings.connections):
            connection.transport.abort()
        self.settings.pools.close()


def build_front(config: Config, desk: Desk, recorder: Recorder) -> FrontSide:
    """Raises InputError."""
    upstream_keys = read_keys(config.upstream_api_key_file, UPSTREAM_KEY_VARIABLE)
    settings = Settings(
        desk=desk,
        pools=Pools(client_tls(config.upstream_ca), config.upstream_keep_alive_s),
        recorder=recorder,
        reader=Reader(config.session_headers, config.bytes_a_token),
        limits=Limits(config.head_bytes, config.body_bytes, config.head_s, config.body_s, config.keep_alive_s),
        paths=config.paths,
        api_keys=read_keys(config.api_key_file, KEY_VARIABLE),
        authorization=b"Bearer " + upstream_keys[0] if upstream_keys else None,
        retries=config.retries,
        retry_statuses=frozenset(config.retry_statuses),
        connect_s=config.connect_s,
        first_byte_s=config.first_byte_s,
        idle_s=config.idle_s,
        name_replica=config.name_replica,
    )
    return FrontSide(settings, config.drain_s, server_tls(config.tls_cert, config.tls_key))


async def serve(config: Config) -> None:
    """Run the router until SIGTERM or SIGINT, then let what is under way end; a second signal ends it at once."""
    stopping = asyncio.Event()
    at_once = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        (at_once if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    fleet = build_fleet(config)
    recorder = Recorder(ready=fleet.ready)
    front = build_front(config, fleet.desk, recorder)
    listener = listen(config.host, config.port)
    await front.serve(listener)
    fleet.start(monotonic())
    port = listener.getsockname()[1]
    log.info("serving http%s://%s:%d", "s" if front.tls else "", config.host, port)
    ticking = loop.create_task(_tick(fleet, front))
    await stopping.wait()
    log.info("draining: %d requests in flight", recorder.in_flight)
    await _first(front.drain(), at_once.wait())
    front.stop()
    ticking.cancel()
    await fleet.stop()
    log.info("stopped")


async def _tick(fleet: Fleet, front: FrontSide) -> None:
    while True:
        now_s = monotonic()
        fleet.tick(now_s)
        front.tick(now_s)
        await asyncio.sleep(TICK_S)


async def _first(*waits: object) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]  # type: ignore[call-overload]  # coroutines, all of them
    _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
