"""What replicas, web pages, files and workers say that must not be believed at once."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from plugins.routing.tests.rig import Heard, MockReplica, answer_ok, play, post, rig

from optistack_routing.fleet.health import Probes
from optistack_routing.fleet.roster import Health
from optistack_routing.fleet.scrape import read_utilisation
from optistack_routing.proxy.pool import UNUSED_S, Pools
from optistack_routing.router.config import Config
from optistack_routing.workers import crew as crews
from optistack_routing.workers.wire import Wire


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"Host: evil.example", 400),
        (b"Host: 127.0.0.1.evil.example:8081", 400),
        (b"Host: 127.0.0.1:8081\r\nOrigin: http://evil.example", 400),
        (b"Host: localhost:8081", 200),
        (b"Host: [::1]:8081", 200),
        (b"Host: 127.0.0.1", 200),
    ],
)
def test_without_a_key_the_admin_side_is_for_this_machine(line: bytes, status: int) -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect(r.admin_port)
            url = r.replicas[0].url.encode()
            await client.say(b"DELETE /replicas?url=" + url + b"&now=1 HTTP/1.1\r\n" + line + b"\r\n\r\n")
            assert (await client.answer())[0] == status
            assert len(r.control.roster.members) == (status == 400)

    play(scenario())


def test_numbers_without_an_end_are_no_numbers() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            (member,) = r.control.roster
            r.replicas[0].metrics = b"sglang:max_total_num_tokens 1e999\n"
            await r.control.kv.ask(member)
            assert member.replica is not None
            assert member.replica.kv_tokens is None

    play(scenario())
    assert read_utilisation(b"vllm:kv_cache_usage_perc -1e999\n") == 0.0


def test_one_refused_probe_forgets_nothing() -> None:
    async def stream(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na")
        await reader.read()
        raise ConnectionError

    async def scenario() -> None:
        async with rig(stream, health_every_s=1000) as r:
            (member,) = r.control.roster
            client = await r.connect()
            await client.say(post(session="s"))
            await client.head()
            before = member.replica
            server = r.replicas[0].server
            assert server is not None
            server.close()  # its connections stay
            probes: Probes = r.control.probes
            for _ in range(3):
                await probes._probe(member)
                assert (member.health, member.accepts) == (Health.FAILING, False)
                assert member.replica is before
            client.leave()
            await r.until(lambda: member.out == 0)
            await probes._probe(member)
            assert (member.health, member.replica) == (Health.DOWN, None)

    play(scenario())


def test_pools_of_replicas_that_get_no_requests_are_dropped() -> None:
    pools = Pools(ssl.create_default_context, 4.0)
    pools.tick(0.0)
    kept, gone = pools.of("http://a:1"), pools.of("http://b:1")
    pools.tick(UNUSED_S)
    assert pools.of("http://a:1") is kept
    pools.tick(2 * UNUSED_S)
    assert gone.closed
    assert not kept.closed
    assert pools.of("http://b:1") is not gone


def test_a_message_that_fails_ends_the_conversation(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Wire):
        ended = False
        heard_before = 0

        def heard(self, message: dict[str, Any]) -> None:
            self.heard_before += 1
            raise KeyError("no such message")

        def connection_lost(self, error: Exception | None) -> None:
            self.ended = True

    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            _, wire = await asyncio.get_running_loop().create_unix_connection(Failing, sock=ours)
            theirs.sendall(b'{"a":1}\n{"a":2}\n')
            theirs.setblocking(False)
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(theirs, 1), 10) == b""
            assert wire.heard_before == 1
            assert wire.ended

    play(scenario())
    assert "no such message" in caplog.text


def test_a_worker_that_cannot_be_started_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Short(crews.Crew):
        tried = 0

        async def _start(self, index: int) -> None:
            self.tried += 1
            raise OSError(24, "Too many open files")

    async def scenario() -> None:
        async with rig(answer_ok) as r:
            crew = Short(Config(), r.control, [])
            crew._restart_s[0] = 0.0
            crew.tick(1.0)
            await asyncio.gather(*crew._tasks)
            assert 0 in crew._restart_s
            crew.tick(crew._restart_s[0])
            await asyncio.gather(*crew._tasks)
            assert crew.tried == 2

    play(scenario())
    assert "Too many open files" in caplog.text


def test_a_file_that_is_empty_for_a_moment_takes_nobody_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        extra = MockReplica()
        await extra.start()
        file = tmp_path / "replicas"
        file.write_text(f"{extra.url}\n")
        async with rig(answer_ok, start=False, replica_file=str(file)) as r:
            r.replicas.append(extra)
            await r.ready(2)
            watched = r.control.file
            assert watched is not None
            file.write_text("")  # and its writer has not come further
            watched.look(0.0)
            assert len(r.control.roster.members) == 2
            file.write_text(f"{extra.url}\n")
            watched.look(1.0)
            file.write_text("")
            watched.look(2.0)
            assert len(r.control.roster.members) == 2
            watched.look(3.0)
            assert len(r.control.roster.members) == 1

    play(scenario())
