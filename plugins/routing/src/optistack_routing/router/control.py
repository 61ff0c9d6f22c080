"""What there is once, in the process that decides: replicas, ledger, probes, and the admin side."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any

from optistack.errors import InputError
from optistack.stack.spec import is_loopback
from optistack_routing.admin.api import Admin, AdminConnection
from optistack_routing.admin.metrics import Exposition
from optistack_routing.admin.state import merged, state
from optistack_routing.fleet.address import is_own
from optistack_routing.fleet.circuit import Breaker
from optistack_routing.fleet.desk import LocalDesk
from optistack_routing.fleet.health import Probes
from optistack_routing.fleet.roster import Roster, Source
from optistack_routing.fleet.scrape import KVGauge
from optistack_routing.fleet.sources import Named, ResolvedName, WatchedFile
from optistack_routing.policy.guarded import Guarded
from optistack_routing.policy.ledger import Ledger
from optistack_routing.router.config import ADMIN_KEY_VARIABLE, UPSTREAM_KEY_VARIABLE, Config, read_keys
from optistack_routing.router.listen import client_tls, server_tls
from optistack_routing.router.policy import parameters_of, policy_of


@dataclass
class Control:
    """Everything that decides. ``counts`` gives each process's snapshot, ``precise`` the state of precise mode."""

    config: Config
    ledger: Ledger
    roster: Roster
    desk: LocalDesk
    probes: Probes
    kv: KVGauge
    file: WatchedFile | None
    name: ResolvedName | None
    admin_tls: ssl.SSLContext | None
    admin_keys: tuple[bytes, ...]
    counts: Callable[[], Iterable[dict[str, Any]]] = tuple
    precise: Callable[[], dict[str, Any]] | None = None
    _since_s: float = field(default_factory=monotonic)
    _expire_s: float = 0.0
    _look_s: float = 0.0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _servers: list[asyncio.Server] = field(default_factory=list)
    _connections: set[AdminConnection] = field(default_factory=set)
    _resolving: bool = False

    async def start(self) -> None:
        """Take in the replicas that are named, and begin to ask after them. Raises InputError."""
        now_s = monotonic()
        for url in self.config.replicas:
            self.roster.add(url, Source.CONFIG, now_s)
        if self.file is not None:
            self.file.start(now_s)
        if self.name is not None:
            await self.name.look()
        if self.config.kv_every_s:
            self._spawn(self.kv.run())

    async def serve_admin(self, listener: socket.socket) -> None:
        admin = Admin(self.roster, self.state, Exposition(self.state), self.admin_keys, self.config.drain_s)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: AdminConnection(admin, self._connections), sock=listener, ssl=self.admin_tls
        )
        self._servers.append(server)

    def tick(self, now_s: float) -> None:
        self.roster.tick(now_s)
        if self.config.health_path:
            self.probes.tick(now_s)
        self.desk.tick(now_s)
        for connection in list(self._connections):
            connection.tick(now_s)
        if now_s >= self._expire_s:
            self._expire_s = now_s + 1.0
            self.ledger.policy.expire(now_s)
        if now_s >= self._look_s:
            self._look_s = now_s + self.config.discovery_every_s
            if self.file is not None:
                self.file.look(now_s)
            if self.name is not None and not self._resolving:
                self._spawn(self._resolve(self.name))

    def ready(self) -> bool:
        return any(replica.accepts for replica in self.ledger.fleet)

    def state(self) -> dict[str, Any]:
        now = state(self.roster, len(self.desk.waiting), merged(self.counts()), self._since_s)
        parameters = asdict(parameters_of(self.config.parameters))
        precise = self.precise() if self.precise is not None else None
        asked = {"policy": self.config.policy, "parameters": parameters, "workers": self.config.workers}
        return {**asked, "session_headers": self.config.session_headers, "precise": precise, **now}

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.probes.stop()

    async def _resolve(self, name: ResolvedName) -> None:
        self._resolving = True
        try:
            await name.look()
        finally:
            self._resolving = False

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def build_control(config: Config) -> Control:
    """Raises InputError."""
    ledger = Ledger(Guarded(policy_of(config.policy, config.parameters, config.seed)))
    roster = Roster(
        ledger,
        lambda: Breaker(config.breaker_failures, config.breaker_open_s, config.breaker_longest_s),
        checks_health=bool(config.health_path),
        is_own=lambda address: (
            is_own(address, config.host, config.port) or is_own(address, config.admin_host, config.admin_port)
        ),
    )
    keys = read_keys(config.upstream_api_key_file, UPSTREAM_KEY_VARIABLE)
    authorization = b"Bearer " + keys[0] if keys else None
    tls = client_tls(config.upstream_ca)
    probes = Probes(
        roster,
        config.health_path,
        config.health_every_s,
        config.health_timeout_s,
        config.health_failures,
        tls=tls,
        authorization=authorization,
    )
    if config.health_path:
        roster.probe = probes.ask
    admin_keys = read_keys(config.admin_api_key_file, ADMIN_KEY_VARIABLE)
    if not admin_keys and not is_loopback(config.admin_host):
        raise InputError(
            f"The admin side would listen on {config.admin_host} for everybody.",
            fix=f"Give admin_api_key_file or {ADMIN_KEY_VARIABLE}, or leave admin_host on 127.0.0.1.",
        )
    file, name = config.replica_file, config.replica_dns
    return Control(
        config,
        ledger,
        roster,
        LocalDesk(ledger, roster, queue_s=config.queue_s, queue_length=config.queue_length),
        probes,
        KVGauge(roster, config.kv_every_s, tls=tls, authorization=authorization),
        WatchedFile(file, Named(roster, Source.FILE, config.drain_s)) if file else None,
        ResolvedName(name, Named(roster, Source.DNS, config.drain_s)) if name else None,
        server_tls(config.admin_tls_cert, config.admin_tls_key),
        admin_keys,
    )
