"""Clients that misbehave: nobody else suffers, nothing is left over."""

from __future__ import annotations

import asyncio

from plugins.routing.tests.replica_scripts import begin_then_hang, hang, head_then_hang, reset
from plugins.routing.tests.rig import answer_ok, chunked, play, post, rig


def test_a_client_that_leaves_takes_its_request_along() -> None:
    async def scenario(script) -> None:
        async with rig(script) as r:
            client = await r.connect()
            await client.say(post())
            if script is begin_then_hang:
                await client.head()
            await r.until(lambda: r.replicas[0].heard and r.load() == [1])
            client.leave()
            await r.until(lambda: r.load() == [0])
            await r.until(lambda: r.replicas[0].open == 0, "for the replica's connection to end")
            r.assert_quiet()
            assert r.recorder.outcomes == {"client_gone": 1}

    for script in (hang, head_then_hang, begin_then_hang):
        play(scenario(script))


def test_a_client_that_closes_its_side_is_taken_to_be_gone() -> None:
    async def scenario() -> None:
        async with rig(begin_then_hang) as r:
            client = await r.connect()
            await client.say(post())
            await client.head()
            client.writer.write_eof()
            await r.until(lambda: r.replicas[0].open == 0)
            r.assert_quiet()

    play(scenario())


def test_a_storm_of_aborts_leaves_every_counter_at_zero() -> None:
    async def scenario() -> None:
        async with rig(hang, head_then_hang, begin_then_hang, reset, answer_ok, retries=1) as r:
            body = b"x" * 50_000

            async def abort(n: int) -> None:
                client = await r.connect()
                request = post(body, session=str(n % 7))
                if n % 3 == 0:
                    await client.say(request[: n * 97 % len(request)])
                else:
                    await client.say(request)
                    for _ in range(n % 5):
                        await asyncio.sleep(0)
                client.leave()

            for _ in range(4):
                await asyncio.gather(*(abort(n) for n in range(100)))
            await r.until(lambda: not r.front.settings.connections)
            await r.until(lambda: all(out == 0 for out in r.load()))
            r.assert_quiet()
            assert r.recorder.connections == 0

    play(scenario())


def test_a_slow_reader_holds_the_replica_back_and_not_the_memory() -> None:
    sent = 0

    async def flood(replica, heard, reader, writer) -> None:
        nonlocal sent
        if heard.body != b"flood":
            await answer_ok(replica, heard, reader, writer)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 300000000\r\n\r\n")
        block = b"x" * 50_000
        for _ in range(6000):
            writer.write(block)
            await writer.drain()
            sent += len(block)

    async def scenario() -> None:
        async with rig(flood, flood, idle_s=1000) as r:
            client = await r.connect()
            client.writer.transport.pause_reading()
            await client.say(post(b"flood"))
            last, still = -1, 0

            def stalled() -> bool:
                nonlocal last, still
                still = still + 1 if sent == last else 0
                last = sent
                return still > 100 and sent > 0

            await r.until(stalled)
            (front,) = r.front.settings.connections
            assert front.transport.get_write_buffer_size() < 1_000_000
            assert sent < 100_000_000  # kernel buffers
            assert (await r.ask())[0] == 200  # the other replica, and the loop, are free
            client.leave()
            await r.until(lambda: sum(r.load()) == 0)
            r.assert_quiet()

    play(scenario())


def test_a_client_that_reads_nothing_is_cut_off() -> None:
    async def flood(replica, heard, reader, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900000000\r\n\r\n")
        while True:
            writer.write(b"x" * 1_000_000)
            await writer.drain()

    async def scenario() -> None:
        async with rig(flood, idle_s=0.2) as r:
            client = await r.connect()
            client.writer.transport.pause_reading()
            await client.say(post())
            await r.until(lambda: r.recorder.outcomes)
            assert r.recorder.outcomes == {"client_gone": 1}
            r.assert_quiet()

    play(scenario())


def test_dripping_headers_and_bodies_are_ended() -> None:
    async def scenario() -> None:
        async with rig(answer_ok, head_s=0.05, body_s=0.05) as r:
            for request in (b"POST /v1/x HTTP/1.1\r\nX-Slow: ", post(b"x" * 100)[:-50]):
                client = await r.connect()
                answer = asyncio.ensure_future(client.rest())
                for byte in request:
                    await client.say(bytes([byte]))
                await r.until(answer.done)
                assert answer.result().startswith(b"HTTP/1.1 408 ")
            assert r.replicas[0].heard == []
            r.assert_quiet()

    play(scenario())


def test_idle_clients_are_closed_without_a_word() -> None:
    async def scenario() -> None:
        async with rig(answer_ok, keep_alive_s=0.05) as r:
            client = await r.connect()
            rest = asyncio.ensure_future(client.rest())
            await r.until(rest.done)
            assert rest.result() == b""

    play(scenario())


def test_limits_of_size() -> None:
    async def scenario() -> None:
        async with rig(answer_ok, body_bytes=10_000, head_bytes=2_000) as r:
            for status, request in {
                413: post(b"x" * 10_001),
                431: post(extra=f"X-Big: {'x' * 3000}\r\n"),
            }.items():
                client = await r.connect()
                await client.say(request)
                assert (await client.rest()).startswith(b"HTTP/1.1 %d " % status)
            client = await r.connect()
            await client.say(b"POST /v1/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
            await client.say(chunked(*[b"x" * 999] * 11))
            assert (await client.rest()).startswith(b"HTTP/1.1 413 ")
            client = await r.connect()
            await client.say(b"POST /v1/x HTTP/1.1\r\nHost: h\r\n" + b"a: b\r\n" * 250 + b"\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
            assert (await r.ask(b"x" * 10_000))[0] == 200
            assert len(r.replicas[0].heard) == 1
            r.assert_quiet()

    play(scenario())
