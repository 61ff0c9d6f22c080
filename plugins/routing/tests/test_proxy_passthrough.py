"""What goes in comes out: bytes, headers, framing."""

from __future__ import annotations

import asyncio
import os

import pytest
from plugins.routing.tests.rig import Client, answer_ok, chunked, play, post, rig


def test_request_bytes_and_unknown_headers_arrive_unchanged() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            body = os.urandom(100_000)
            client = await r.connect()
            await client.say(
                b"POST /v1/chat/completions?x=%20y HTTP/1.1\r\nhOsT: some.where:1\r\nX-Odd:   spaced out  \r\n"
                b"X-Odd: twice\r\nX-Session-Id: s\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\n"
                b"Keep-Alive: timeout=5\r\nContent-Length: 100000\r\n\r\n" + body
            )
            assert (await client.answer())[0] == 200
            (heard,) = r.replicas[0].heard
            assert heard.body == body
            assert heard.lines == [
                b"POST /v1/chat/completions?x=%20y HTTP/1.1",
                b"hOsT: some.where:1",
                b"X-Odd:   spaced out  ",
                b"X-Odd: twice",
                b"X-Session-Id: s",
                b"Content-Length: 100000",
                b"",
                b"",
            ]

    play(scenario())


def test_a_stream_arrives_piece_by_piece_as_it_was_framed() -> None:
    frames = [
        b'5;ext="v"\r\nhello\r\n',
        b"2\r\n\xff\n\r\n",
        b"3\r\nabc\r",
        b"\n",
        b"1",
        b"\r\nz\r\n0\r\nX-T: 1\r\n\r\n",
    ]
    go = asyncio.Event()

    async def stream(replica, heard, reader, writer) -> None:
        writer.write(
            b"HTTP/1.1 200 Fine\r\nX-Any:  thing\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n"
        )
        for frame in frames:
            writer.write(frame)
            await go.wait()
            go.clear()

    async def scenario() -> None:
        async with rig(stream) as r:
            client = await r.connect()
            await client.say(post())
            assert await client.head() == b"HTTP/1.1 200 Fine\r\nX-Any:  thing\r\nTransfer-Encoding: chunked\r\n\r\n"
            for frame in frames:
                assert await client.exactly(len(frame)) == frame
                go.set()
            r.replicas[0].script = answer_ok
            await client.say(post())  # the connection is still good, on both sides
            assert (await client.answer())[2] == b"ok"
            assert r.replicas[0].open == 1
            r.assert_quiet()

    play(scenario())


def test_a_chunked_upload_arrives_with_its_length() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect()
            whole = chunked(b"one", b"two" * 30_000, b"\r\n0\r\n")
            await client.say(b"POST /v1/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n")
            for at in range(0, len(whole), 7_001):
                await client.say(whole[at : at + 7_001])
            assert (await client.answer())[0] == 200
            (heard,) = r.replicas[0].heard
            assert heard.body == b"one" + b"two" * 30_000 + b"\r\n0\r\n"
            assert heard.header(b"transfer-encoding") is None

    play(scenario())


def test_pipelined_requests_are_answered_in_their_order() -> None:
    async def echo(replica, heard, reader, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(heard.body), heard.body))

    async def scenario() -> None:
        async with rig(echo, echo) as r:
            client = await r.connect()
            await client.say(b"".join(post(b"%d" % n * 2000) for n in range(50)) + b"\r\n" + post(b"last"))
            for n in range(50):
                assert (await client.answer())[2] == b"%d" % n * 2000
            assert (await client.answer())[2] == b"last"
            r.assert_quiet()

    play(scenario())


def test_a_client_that_expects_100_continue_is_told_to_go_on() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect()
            await client.say(b"POST /v1/x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
            assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.say(b"{}")
            assert (await client.answer())[0] == 200
            assert r.replicas[0].heard[0].header(b"expect") is None

    play(scenario())


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 X\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 400 \r\nContent-Length: 4\r\n\r\nnope", b"nope"),
    ],
)
def test_other_framings_of_an_answer(answer: bytes, body: bytes) -> None:
    async def script(replica, heard, reader, writer) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        async with rig(script) as r:
            client = await r.connect()
            await client.say(post(extra="Connection: close\r\n"))
            assert (await client.rest()).split(b"\r\n\r\n", 1)[1] == body
            r.assert_quiet()

    play(scenario())


def test_http_1_0_clients_get_an_answer_that_ends_with_the_connection() -> None:
    async def script(replica, heard, reader, writer) -> None:
        assert heard.head.startswith(b"GET /v1/models HTTP/1.0\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nplain")
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        async with rig(script) as r:
            client = await r.connect()
            await client.say(b"GET /v1/models HTTP/1.0\r\n\r\n")
            assert await client.rest() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nplain"

    play(scenario())


def test_answers_to_head_have_no_body() -> None:
    async def script(replica, heard, reader, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")

    async def scenario() -> None:
        async with rig(script) as r:
            client = await r.connect()
            for _ in range(2):
                await client.say(b"HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
                assert b"Content-Length: 1000" in await client.head()
            r.assert_quiet()

    play(scenario())


def test_the_replica_is_named_when_asked_for() -> None:
    async def scenario() -> None:
        async with rig(answer_ok, name_replica=True) as r:
            _, head, _ = await r.ask()
            assert b"x-optistack-replica: " + r.replicas[0].url.encode() in head

    play(scenario())


def test_usage_is_read_and_nothing_is_changed() -> None:
    usage = b'{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":64}}'
    said = b'{"choices":[],"usage":' + usage + b"}"

    async def script(replica, heard, reader, writer) -> None:
        events = [b"data: hello\n\n", b"data: " + said + b"\n\n", b"data: [DONE]\n\n"]
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(*events))

    async def scenario() -> None:
        async with rig(script) as r:
            _, _, body = await r.ask()
            assert said in body
            sums = r.recorder.sums
            assert (sums["prompt_tokens"], sums["cached_tokens"], sums["output_tokens"]) == (100, 64, 7)

    play(scenario())


def test_idle_connections_to_a_replica_are_used_again_and_then_closed() -> None:
    async def scenario() -> None:
        async with rig(answer_ok, upstream_keep_alive_s=0.05, health_every_s=1000) as r:
            client: Client = await r.connect()
            for _ in range(20):
                await client.say(post())
                await client.answer()
            assert r.replicas[0].open == 1
            await r.until(lambda: r.replicas[0].open == 0)

    play(scenario())
