"""One client's connection: which requests it may send, and what answers them."""

from __future__ import annotations

import asyncio
from hmac import compare_digest

from optistack_routing.http.head import Refused, RequestHead
from optistack_routing.http.server import Phase, ServerConnection
from optistack_routing.proxy.relay import Relay
from optistack_routing.proxy.settings import Settings


class Front(ServerConnection):
    """Answers for the router's own health, and relays all other requests, one after the other."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.limits = settings.limits
        self.stuck = False
        self._relay: Relay | None = None  # of the request that is being answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.settings.connections.add(self)
        self.settings.recorder.connections += 1
        if self.settings.draining:
            self.drain()

    def connection_lost(self, error: Exception | None) -> None:
        self.settings.connections.discard(self)
        self.settings.recorder.connections -= 1
        super().connection_lost(error)
        self._relay = None

    def admitted(self, head: RequestHead) -> None:
        path = head.target
        if path == b"/health" and head.method in (b"GET", b"HEAD"):
            if head.length != 0:  # it needs no key, so it gets no memory
                raise Refused(400, "A health check has no body.")
            return
        keys = self.settings.api_keys
        if keys:
            given = head.by_name.get(b"authorization", b"")
            given = given[7:] if given[:7].lower() == b"bearer " else head.by_name.get(b"x-api-key", b"")
            if sum(compare_digest(given, key) for key in keys) == 0:  # each is compared, whichever fits
                raise Refused(401, "The API key is missing or wrong: send Authorization: Bearer KEY.")
        path = path.split(b"?", 1)[0]
        if not path.startswith(self.settings.prefixes) or b"/." in path or b"%2e" in path.lower():
            raise Refused(404, "This path is not routed.")

    def refused(self, status: int) -> None:
        self.settings.recorder.refused(status)

    def handle(self, head: RequestHead, body: list[bytes], size_bytes: int) -> None:
        if head.target == b"/health":
            self._tell_health()
            return
        self._relay = Relay(self.settings, self, head, body, size_bytes)
        self._relay.start()

    def _tell_health(self) -> None:
        ready = self.settings.recorder.ready()
        if self.settings.draining:
            self.respond(503, b'{"status":"draining"}\n')
        else:
            self.respond(*(200, b'{"status":"ok"}\n') if ready else (503, b'{"status":"no replica is ready"}\n'))

    def answered(self, keep_alive: bool) -> None:
        self._relay = None
        super().answered(keep_alive)

    def cut_off(self) -> None:
        self.phase = Phase.CLOSED
        self.transport.abort()

    def gone(self) -> None:
        if self._relay is not None:
            self._relay.gone()

    def pause_writing(self) -> None:
        self.stuck = True
        if self._relay is not None:
            self._relay.pause()

    def resume_writing(self) -> None:
        self.stuck = False
        if self._relay is not None:
            self._relay.resume()

    def tick(self, now_s: float) -> None:
        if self.phase is not Phase.BUSY:
            super().tick(now_s)
        elif self._relay is not None:
            self._relay.tick(now_s)
