"""The idle connections of each replica, kept for its next requests."""

from __future__ import annotations

import asyncio
from time import monotonic

from optistack_routing.fleet.address import Address, read_address
from optistack_routing.http.client import ClientTLS
from optistack_routing.proxy.upstream import Upstream

UNUSED_S = 300.0
"""After which a replica that gets no requests, most often since it has left, is sent them on new connections."""


class Pool:
    """The idle connections of one replica, last used first, so that the surplus ages and is closed."""

    def __init__(self, address: Address, tls: ClientTLS, idle_s: float, most_idle: int = 256) -> None:
        self.address = address
        self._tls = tls() if address.tls else None
        self._idle_s = idle_s
        self._most_idle = most_idle
        self.idle: list[Upstream] = []
        self.closed = False

    def take(self) -> Upstream | None:
        while self.idle:
            connection = self.idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def connect(self) -> Upstream:
        """Raises OSError (ssl.SSLError is one)."""
        _, protocol = await asyncio.get_running_loop().create_connection(
            lambda: Upstream(self), self.address.host, self.address.port, ssl=self._tls
        )
        return protocol

    def release(self, connection: Upstream) -> None:
        if len(self.idle) >= self._most_idle or self.closed or connection.transport.is_closing():
            connection.discard()
            return
        if not connection.transport.is_reading():  # its last client was slow
            connection.transport.resume_reading()
        connection.idle_since_s = monotonic()
        self.idle.append(connection)

    def lost(self, connection: Upstream) -> None:
        if connection in self.idle:
            self.idle.remove(connection)

    def tick(self, now_s: float) -> None:
        while self.idle and now_s - self.idle[0].idle_since_s > self._idle_s:
            self.idle[0].discard()

    def close(self) -> None:
        """Idle connections end now, and those in use with their answers."""
        self.closed = True
        for connection in list(self.idle):
            connection.discard()


class Pools:
    """A pool for each replica that is sent requests; one that has got none for ``UNUSED_S`` is dropped."""

    def __init__(self, tls: ClientTLS, idle_s: float) -> None:
        self._tls = tls
        self._idle_s = idle_s
        self._pools: dict[str, Pool] = {}
        self._asked: set[str] = set()
        self._look_s = 0.0

    def of(self, url: str) -> Pool:
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = Pool(read_address(url), self._tls, self._idle_s)
        self._asked.add(url)
        return pool

    def tick(self, now_s: float) -> None:
        for pool in self._pools.values():
            pool.tick(now_s)
        if now_s >= self._look_s:
            self._look_s = now_s + UNUSED_S
            for url in self._pools.keys() - self._asked:
                self._pools.pop(url).close()
            self._asked.clear()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
