"""A router and its replicas in one event loop, over real sockets, with clients that can say any bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import uvloop

from optistack_routing.admin.state import snapshot
from optistack_routing.proxy.record import Recorder
from optistack_routing.router.config import load
from optistack_routing.router.control import Control, build_control
from optistack_routing.router.front import FrontSide, build_front
from optistack_routing.router.listen import listen

DEADLINE_S = 10.0

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def play(scenario: Coroutine[Any, Any, None]) -> None:
    """Run ``scenario`` on the event loop that the router has in production."""
    uvloop.run(scenario)


@dataclass
class Heard:
    """One request as a replica got it."""

    head: bytes
    body: bytes

    @property
    def lines(self) -> list[bytes]:
        return self.head.split(b"\r\n")

    def header(self, name: bytes) -> bytes | None:
        found = [line.split(b":", 1)[1].strip() for line in self.lines if line.lower().startswith(name.lower() + b":")]
        return found[0] if found else None


Script = Callable[["MockReplica", Heard, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def answer_ok(replica: MockReplica, heard: Heard, reader: asyncio.StreamReader, writer: Any) -> None:
    writer.write(OK)


@dataclass
class MockReplica:
    """An engine that does what ``script`` says for each request that is not a health check."""

    script: Script = answer_ok
    healthy: bool = True
    metrics: bytes = b"vllm:kv_cache_usage_perc 0.25\n"
    heard: list[Heard] = field(default_factory=list)
    open: int = 0
    port: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=2**20)
        self.port = self.server.sockets[0].getsockname()[1]

    async def die(self) -> None:
        """As after kill -9: nothing listens, and every connection is reset."""
        assert self.server is not None
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /health"):
                    writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % (200 if self.healthy else 503))
                    continue
                if head.startswith(b"GET /metrics"):
                    page = self.metrics
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))
                    continue
                heard = Heard(head, b"")
                if length := heard.header(b"content-length"):
                    heard.body = await reader.readexactly(int(length))
                self.heard.append(heard)
                await self.script(self, heard, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self.writers.discard(writer)
            writer.transport.abort()


@dataclass
class Client:
    """A connection on which bytes are said and heard."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), DEADLINE_S)

    async def exactly(self, count: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(count), DEADLINE_S)

    async def rest(self) -> bytes:
        """Everything until the router closes."""
        parts = []
        try:
            while part := await asyncio.wait_for(self.reader.read(65536), DEADLINE_S):
                parts.append(part)
        except ConnectionError:
            parts.append(b"<reset>")
        return b"".join(parts)

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head and body of one answer with a Content-Length or chunks; the body as framed on the wire."""
        head = await self.head()
        status = int(head.split(b" ", 2)[1])
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            body = await asyncio.wait_for(self.reader.readuntil(b"0\r\n\r\n"), DEADLINE_S)
        else:
            found = [line for line in lower.split(b"\r\n") if line.startswith(b"content-length:")]
            body = await self.exactly(int(found[0].split(b":")[1])) if found else b""
        return status, head, body

    def leave(self) -> None:
        self.writer.transport.abort()


@dataclass
class Rig:
    control: Control
    front: FrontSide
    recorder: Recorder
    replicas: list[MockReplica]
    port: int
    clients: list[Client] = field(default_factory=list)
    admin_port: int = 0

    async def connect(self, port: int | None = None) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", port or self.port, limit=2**20))
        self.clients.append(client)
        return client

    async def ask(self, body: bytes = b"{}", *, session: str = "", path: str = "/v1/x") -> tuple[int, bytes, bytes]:
        """One POST on a connection of its own."""
        client = await self.connect()
        await client.say(post(body, session=session, path=path))
        answer = await client.answer()
        client.leave()
        return answer

    async def admin(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes, bytes]:
        client = await self.connect(self.admin_port)
        kind = "Content-Type: application/json\r\n" if method == "POST" else ""
        await client.say(
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:1\r\n{kind}Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        answer = await client.answer()
        client.leave()
        return answer

    async def until(self, done: Callable[[], Any], what: str = "") -> None:
        """Let the loop run until ``done``; the clocks of the router tick meanwhile."""
        end = monotonic() + DEADLINE_S
        while not done():
            assert monotonic() < end, f"waited in vain {what}"
            self.tick()
            await asyncio.sleep(0.002)

    def tick(self) -> None:
        self.control.tick(monotonic())
        self.front.tick(monotonic())

    def load(self) -> list[int]:
        return [member.out for member in self.control.roster]

    async def ready(self, count: int | None = None) -> None:
        wanted = len(self.replicas) if count is None else count
        await self.until(lambda: sum(r.accepts for r in self.control.ledger.fleet) == wanted, "for replicas")

    def assert_quiet(self) -> None:
        """Nothing is left of any request."""
        assert self.control.ledger.in_flight == 0
        assert self.recorder.in_flight == 0
        for member in self.control.roster:
            assert member.out == 0
            if member.replica is not None:
                assert (member.replica.in_flight, member.replica.pending_prefill_tokens) == (0, 0)
        assert not self.control.desk.waiting


def post(body: bytes = b"{}", *, session: str = "", path: str = "/v1/x", extra: str = "") -> bytes:
    named = f"X-Session-Id: {session}\r\n" if session else ""
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\n{named}{extra}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@asynccontextmanager
async def rig(*scripts: Script, start: bool = True, **options: Any) -> AsyncIterator[Rig]:
    """A router over one replica for each of ``scripts``."""
    replicas = [MockReplica(script) for script in scripts]
    for replica in replicas:
        await replica.start()
    given = {"replicas": tuple(replica.url for replica in replicas), "kv_every_s": 0, **options}
    config = load(None, given)
    control = build_control(config)
    recorder = Recorder(ready=control.ready)
    control.counts = lambda: [snapshot(recorder)]
    front = build_front(config, control.desk, recorder)
    listener, admin = listen("127.0.0.1", 0), listen("127.0.0.1", 0)
    ports = listener.getsockname()[1], admin.getsockname()[1]
    await control.start()
    await front.serve(listener)
    await control.serve_admin(admin)
    made = Rig(control, front, recorder, replicas, ports[0], admin_port=ports[1])
    try:
        if start and options.get("health_path") != "":
            await made.ready()
        yield made
    finally:
        for client in made.clients:
            client.leave()
        await front.stop()
        await control.stop()
        for replica in replicas:
            await replica.die()
        await asyncio.sleep(0)
        end = monotonic() + DEADLINE_S
        while (front.settings.connections or any(replica.open for replica in replicas)) and monotonic() < end:
            await asyncio.sleep(0.001)


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
