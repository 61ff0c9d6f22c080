"""One router process: everything that runs in it, put together, started and stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from optistack_routing.admin.state import snapshot
from optistack_routing.fleet.desk import Desk
from optistack_routing.http.server import Limits
from optistack_routing.proxy.front import Front, Settings
from optistack_routing.proxy.record import Recorder
from optistack_routing.proxy.session import Reader
from optistack_routing.proxy.upstream import Pools
from optistack_routing.router.accesslog import AccessLog
from optistack_routing.router.config import KEY_VARIABLE, UPSTREAM_KEY_VARIABLE, Config, read_keys
from optistack_routing.router.control import Control, build_control
from optistack_routing.router.listen import client_tls, listen, server_tls
from optistack_routing.router.precise import open_overlap

log = logging.getLogger("optistack.route")

TICK_S = 0.25


@dataclass
class FrontSide:
    """The data plane of one process."""

    settings: Settings
    drain_s: float
    tls: ssl.SSLContext | None = None
    access_log: AccessLog | None = None
    servers: list[asyncio.Server] = field(default_factory=list)

    async def serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Front(self.settings), sock=listener, ssl=self.tls, backlog=4096)
        self.servers.append(server)

    def tick(self, now_s: float) -> None:
        for connection in list(self.settings.connections):
            connection.tick(now_s)
        self.settings.pools.tick(now_s)
        if self.access_log is not None:
            self.access_log.flush()

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
        for server in self.servers:
            server.close()
        for connection in list(self.settings.connections):
            connection.transport.abort()
        self.settings.pools.close()
        if self.settings.overlap is not None:
            self.settings.overlap.close()
        if self.access_log is not None:
            self.access_log.close()


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
        overlap=open_overlap(config.precise) if config.precise is not None else None,
    )
    access_log = AccessLog(config.access_log) if config.access_log else None
    if access_log is not None:
        recorder.written = access_log.write
    return FrontSide(settings, config.drain_s, server_tls(config.tls_cert, config.tls_key), access_log)


async def serve(config: Config) -> None:
    """Run the router until SIGTERM or SIGINT, then let what is under way end; a second signal ends it at once.

    Raises InputError for what cannot be used.
    """
    control = build_control(config)
    recorder = Recorder(ready=control.ready)
    control.counts = lambda: [snapshot(recorder)]
    front = build_front(config, control.desk, recorder)
    if front.settings.overlap is not None:
        control.precise = front.settings.overlap.state
    listener, admin_listener = listen(config.host, config.port), listen(config.admin_host, config.admin_port)
    stop = Signals()
    await control.start()
    await control.serve_admin(admin_listener)
    await front.serve(listener)
    log.info("serving %s, admin %s", shown(listener, front.tls), shown(admin_listener, control.admin_tls))
    async with ticking(control, front):
        await stop.asked.wait()
        log.info("draining: %d requests in flight", recorder.in_flight)
        await first(front.drain(), stop.at_once.wait())
    front.stop()
    await control.stop()
    log.info("stopped")


class Signals:
    """``asked`` at the first SIGTERM or SIGINT, ``at_once`` at the second."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        (self.at_once if self.asked.is_set() else self.asked).set()


class ticking:
    """Runs the clocks of the given parts while its block runs."""

    def __init__(self, *parts: Control | FrontSide) -> None:
        self._parts = parts

    async def __aenter__(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            now_s = monotonic()
            for part in self._parts:
                try:
                    part.tick(now_s)
                except Exception:  # a clock that stops would stop every timeout
                    log.exception("a tick failed")
            await asyncio.sleep(TICK_S)


async def first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of ``waits`` is over, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()


def shown(listener: socket.socket, tls: ssl.SSLContext | None) -> str:
    host, port = listener.getsockname()[:2]
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
