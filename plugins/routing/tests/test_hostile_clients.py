"""Clients that take what is not theirs: memory, connections, the clock."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from plugins.routing.tests.rig import Heard, MockReplica, answer_ok, play, post, rig

from optistack_routing.router.accesslog import AccessLog
from optistack_routing.router.clock import ticking


@pytest.mark.parametrize("request_", ["", "Connection: close\r\n"])
def test_a_client_that_does_not_read_its_answer_is_closed_in_the_end(request_: str) -> None:
    async def big(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        size = int(heard.body)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))

    async def scenario() -> None:
        async with rig(big, keep_alive_s=0.1, idle_s=60) as r:
            for size in (2_500_000, 2_800_000, 3_000_000):  # some of it stays here, less than holds the replica back
                with socket.socket() as client:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    client.setblocking(False)
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(client, ("127.0.0.1", r.port))
                    before = sum(r.recorder.outcomes.values())
                    await loop.sock_sendall(client, post(b"%d" % size, extra=request_))
                    for _ in range(100):
                        r.tick()
                        await asyncio.sleep(0.002)
                    if sum(r.recorder.outcomes.values()) > before:  # answered, as far as the replica is concerned
                        await r.until(lambda: not r.front.settings.connections)
            assert r.recorder.outcomes["served"] >= 1

    play(scenario())


def test_without_a_key_nobody_has_a_body_read(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k\n")
    key.chmod(0o600)

    async def scenario() -> None:
        async with rig(answer_ok, api_key_file=str(key)) as r:
            client = await r.connect()
            await client.say(b"GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: 60000000\r\n\r\n" + bytes(100_000))
            assert (await client.head()).startswith(b"HTTP/1.1 400 ")
            client = await r.connect()
            await client.say(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await client.answer())[0] == 200

    play(scenario())


@pytest.mark.parametrize("path", ["/v1/x", "/health"])
def test_a_client_of_http_1_0_is_closed_after_its_answer(path: str) -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect()
            await client.say(f"GET {path} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode())
            said = await client.rest()
            assert said.startswith(b"HTTP/1.1 200 ")
            assert b"\r\nConnection: close\r\n" in said

    play(scenario())


def test_a_clock_outlives_its_errors(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("optistack_routing.router.clock.TICK_S", 0.001)
    ticks = 0
    twice = asyncio.Event()

    class Failing:
        def tick(self, now_s: float) -> None:
            nonlocal ticks
            ticks += 1
            if ticks == 2:
                twice.set()
            raise OSError

    async def scenario() -> None:
        async with ticking(Failing()):
            await asyncio.wait_for(twice.wait(), 10)

    with caplog.at_level(logging.ERROR, "optistack.route"):
        play(scenario())
    assert "a tick failed" in caplog.text


def test_a_full_disk_costs_the_lines_of_the_access_log_only(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog("/dev/full")
    with caplog.at_level(logging.WARNING, "optistack.route"):
        for _ in range(3):
            log.write({"a": 1})
            log.flush()
    log.close()
    assert caplog.text.count("the access log loses lines: No space left on device") == 1
