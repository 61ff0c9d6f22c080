"""Bytes that two servers could read in two ways are refused; what is accepted has llhttp's reading."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plugins.routing.tests.rig import answer_ok, play, rig

from optistack_routing.http.chunked import Chunked
from optistack_routing.http.head import Refused, read_request, read_response

START = b"POST /v1/x HTTP/1.1\r\nHost: h\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED = {
    "length and chunks": (400, START + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunks and length": (400, START + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    "two lengths": (400, START + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
    "one length twice": (400, START + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    "a list of lengths": (400, START + b"Content-Length: 5, 5\r\n\r\nhello"),
    "signed length": (400, START + b"Content-Length: +5\r\n\r\nhello"),
    "negative length": (400, START + b"Content-Length: -5\r\n\r\nhello"),
    "hexadecimal length": (400, START + b"Content-Length: 0x5\r\n\r\nhello"),
    "empty length": (400, START + b"Content-Length:\r\n\r\nhello"),
    "endless length": (400, START + b"Content-Length: 99999999999999999999\r\n\r\n"),
    "folded header": (400, START + b"X-A: 1\r\n 2\r\nContent-Length: 0\r\n\r\n"),
    "header folded first": (400, b"POST /v1/x HTTP/1.1\r\n X: 1\r\nHost: h\r\n\r\n"),
    "bare LF between headers": (400, START + b"X-A: 1\nContent-Length: 0\r\n\r\n"),
    "bare LF after the request line": (400, b"POST /v1/x HTTP/1.1\nHost: h\r\n\r\n"),
    "bare CR in a header": (400, START + b"X-A: 1\rContent-Length: 0\r\n\r\n"),
    "NUL in a header": (400, START + b"X-A: 1\x00\r\n\r\n"),
    "only LF": (400, b"POST /v1/x HTTP/1.1\nHost: h\n\n"),
    "space before the colon": (400, START + b"Content-Length : 5\r\n\r\nhello"),
    "tab before the colon": (400, START + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"),
    "no colon": (400, START + b"Content-Length\r\n\r\n"),
    "no name": (400, START + b": 5\r\n\r\n"),
    "name of other letters": (400, START + b"Content\xc2\xadLength: 5\r\n\r\nhello"),
    "chunked twice": (400, START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunked, then identity": (501, START + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    "identity, then chunked": (501, START + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"),
    "nearly chunked": (501, START + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "chunked with a vertical tab": (400, START + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    "chunks in HTTP/1.0": (400, b"POST /v1/x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunk of no size": (400, CHUNKED + b"\r\nhello\r\n0\r\n\r\n"),
    "chunk size with a sign": (400, CHUNKED + b"+5\r\nhello\r\n0\r\n\r\n"),
    "chunk size with 0x": (400, CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk size with a space before": (400, CHUNKED + b" 5\r\nhello\r\n0\r\n\r\n"),
    "chunk size too large": (400, CHUNKED + b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
    "chunk size that ends with LF": (400, CHUNKED + b"5\nhello\r\n0\r\n\r\n"),
    "chunk that is longer than it says": (400, CHUNKED + b"5\r\nhello world\r\n0\r\n\r\n"),
    "chunk that ends with LF": (400, CHUNKED + b"5\r\nhello\n0\r\n\r\n"),
    "chunk extension with LF": (400, CHUNKED + b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
    "chunk extension with CR": (400, CHUNKED + b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
    "chunk extension without end": (400, CHUNKED + b"5;" + b"a" * 1000),
    "trailer that is no header": (400, CHUNKED + b"0\r\nGET /v1/y HTTP/1.1\r\n\r\n"),
    "two hosts": (400, b"POST /v1/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    "no host": (400, b"POST /v1/x HTTP/1.1\r\nX: 1\r\n\r\n"),
    "whole URL": (400, b"POST http://h/v1/x HTTP/1.1\r\nHost: h\r\n\r\n"),
    "two spaces": (400, b"POST  /v1/x HTTP/1.1\r\nHost: h\r\n\r\n"),
    "tab in the request line": (400, b"POST\t/v1/x HTTP/1.1\r\nHost: h\r\n\r\n"),
    "small letters": (400, b"post /v1/x HTTP/1.1\r\nHost: h\r\n\r\n"),
    "no version": (400, b"GET /v1/x\r\nHost: h\r\n\r\n"),
    "version 1.2": (505, b"GET /v1/x HTTP/1.2\r\nHost: h\r\n\r\n"),
    "version 2": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "connect": (501, b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n"),
    "websocket": (501, b"GET /v1/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
    "unknown expectation": (417, START + b"Expect: a-miracle\r\nContent-Length: 0\r\n\r\n"),
    "path upwards": (404, b"GET /v1/../flush_cache HTTP/1.1\r\nHost: h\r\n\r\n"),
    "path upwards in disguise": (404, b"GET /v1/%2e%2E/flush_cache HTTP/1.1\r\nHost: h\r\n\r\n"),
    "path that is not served": (404, b"GET /flush_cache HTTP/1.1\r\nHost: h\r\n\r\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_nothing_reaches_a_replica(name: str) -> None:
    status, request = REFUSED[name]

    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect()
            await client.say(request)
            said = await client.rest()
            assert said.startswith(b"HTTP/1.1 %d " % status), said
            assert b"\r\nConnection: close\r\n" in said
            assert said.count(b"HTTP/1.1 %d " % status) == 1
            assert r.replicas[0].heard == []
            r.assert_quiet()

    play(scenario())


def test_an_offer_of_http_2_is_passed_over() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect()
            await client.say(
                b"GET /v1/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\n"
                b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
            )
            assert (await client.answer())[0] == 200
            assert r.replicas[0].heard[0].lines == [b"GET /v1/x HTTP/1.1", b"Host: h", b"", b""]

    play(scenario())


def test_connection_cannot_name_away_what_frames_a_request() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect()
            await client.say(START + b"Connection: Host, Content-Length\r\nContent-Length: 2\r\n\r\n{}")
            assert (await client.answer())[0] == 200
            assert r.replicas[0].heard[0].body == b"{}"
            assert r.replicas[0].heard[0].header(b"host") == b"h"

    play(scenario())


TOKENS = st.text("abcXYZ09-_!", min_size=1, max_size=8).map(str.encode)
PIECES = st.one_of(
    st.tuples(TOKENS, st.binary(max_size=10)).map(lambda pair: pair[0] + b":" + pair[1] + b"\r\n"),
    st.sampled_from(
        [
            b"Host: h\r\n",
            b"Content-Length: 3\r\n",
            b"Content-Length: 03\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"transfer-encoding:chunked\r\n",
            b" folded\r\n",
            b"X : y\r\n",
            b"X:\n",
            b"Connection: close\r\n",
        ]
    ),
)
HEADS = st.tuples(
    st.sampled_from(
        [b"GET / HTTP/1.1\r\n", b"POST /a?b HTTP/1.0\r\n", b"POST /\x7f HTTP/1.1\r\n", b"GET /a b HTTP/1.1\r\n"]
    ),
    st.lists(PIECES, max_size=6).map(b"".join),
).map(lambda pair: pair[0] + b"\r\n" + pair[1] + b"\r\n")


class Witness:
    """What llhttp reads."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.complete = True


@given(HEADS)
@settings(max_examples=500, deadline=None)
def test_what_is_accepted_is_what_llhttp_reads(head: bytes) -> None:
    try:
        request = read_request(head)
    except Refused:
        return
    witness = Witness()
    parser = httptools.HttpRequestParser(witness)
    parser.feed_data(head)
    assert witness.complete
    assert parser.get_method() == request.method
    read = [(name, value.strip(b" \t")) for name, value in witness.headers]
    assert read == [(name, value.strip(b" \t")) for name, value in request.fields]


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.data())
@settings(max_examples=300, deadline=None)
def test_chunks_end_where_they_end_however_they_are_cut(parts: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(b"%X%b\r\n%b\r\n" % (len(part), data.draw(st.sampled_from([b"", b";a=b"])), part) for part in parts)
    wire += b"0\r\n" + data.draw(st.sampled_from([b"", b"X-T: v\r\n"])) + b"\r\n"
    surplus = b"HTTP/1.1 200 OK\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    content: list[bytes] = []
    body = Chunked()
    for start, end in zip([0, *cuts], [*cuts, None], strict=True):
        piece = (wire + surplus)[start:end]
        used = body.feed(piece, content)
        if body.done:
            break
        assert used == len(piece)
    assert body.done
    assert start + used == len(wire)
    assert b"".join(content) == b"".join(parts)


@given(st.binary(max_size=200), st.integers(0, 200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_chunks_or_refused(wire: bytes, cut: int) -> None:
    def outcome(*pieces: bytes) -> object:
        body, content = Chunked(), []
        try:
            for piece in pieces:
                if body.done:
                    break
                body.feed(piece, content)
        except Refused:
            return "refused"
        return body.done, b"".join(content)

    assert outcome(wire) == outcome(wire[:cut], wire[cut:])


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: 1\r\n 2\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 1\r\n\r\n",
    ],
)
def test_answers_that_are_ambiguous_are_refused(head: bytes) -> None:
    with pytest.raises(Refused) as refusal:
        read_response(head, b"POST")
    assert refusal.value.status == 502
