"""The data plane of one process: its settings, its sockets, its end."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass, field
from time import monotonic

from optistack.errors import InputError
from optistack_routing.fleet.desk import Desk
from optistack_routing.http.server import Limits
from optistack_routing.proxy.front import Front
from optistack_routing.proxy.pool import Pools
from optistack_routing.proxy.record import Recorder
from optistack_routing.proxy.session import Reader
from optistack_routing.proxy.settings import Settings
from optistack_routing.router.accesslog import AccessLog
from optistack_routing.router.config import KEY_VARIABLE, UPSTREAM_KEY_VARIABLE, Config, read_keys
from optistack_routing.router.listen import client_tls, server_tls
from optistack_routing.router.precise import open_overlap
from optistack_routing.tap.front import TappedFront
from optistack_routing.tap.recordings import Recordings

log = logging.getLogger("optistack.route")


@dataclass
class FrontSide:
    """The data plane of one process."""

    settings: Settings
    drain_s: float
    tls: ssl.SSLContext | None = None
    access_log: AccessLog | None = None
    recordings: Recordings | None = None
    servers: list[asyncio.Server] = field(default_factory=list)

    async def serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._connection, sock=listener, ssl=self.tls, backlog=4096)
        self.servers.append(server)

    def _connection(self) -> Front:
        return Front(self.settings) if self.recordings is None else TappedFront(self.settings, self.recordings)

    def tick(self, now_s: float) -> None:
        if self.access_log is not None:  # first: an error below must not let its lines pile up
            self.access_log.flush()
        self.settings.pools.tick(now_s)
        for connection in list(self.settings.connections):
            connection.tick(now_s)

    def reopen(self) -> None:
        """The access log has been renamed: begin a new one."""
        if self.access_log is not None:
            try:
                self.access_log.reopen()
            except InputError as error:
                log.warning("the access log stays as it is: %s", error)

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

    async def stop(self) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.settings.connections):
            connection.transport.abort()
        self.settings.pools.close()
        if self.settings.overlap is not None:
            self.settings.overlap.close()
        if self.access_log is not None:
            self.access_log.close()
        if self.recordings is not None:
            self.recordings.close()


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
    recordings = Recordings(config.tap) if config.tap is not None else None
    return FrontSide(settings, config.drain_s, server_tls(config.tls_cert, config.tls_key), access_log, recordings)
