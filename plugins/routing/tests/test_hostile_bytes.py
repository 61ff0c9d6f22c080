"""Bytes that cost much or mean two things."""

from __future__ import annotations

from time import perf_counter

import pytest

from optistack_routing.http.head import Refused, read_request, read_response

START = b"POST /v1/x HTTP/1.1\r\nHost: h\r\n"


@pytest.mark.parametrize("line", [b"a" * 64_000, b"a: b\rc" * 10_000, b"a:" * 32_000 + b"\0", b"a " * 32_000])
def test_a_head_that_is_none_is_refused_in_no_time(line: bytes) -> None:
    began_s = perf_counter()
    with pytest.raises(Refused):
        read_request(START + line + b"\r\n\r\n")
    assert perf_counter() - began_s < 0.5


@pytest.mark.parametrize("name", [b"Authorization", b"x-api-key"])
def test_two_keys_are_refused(name: bytes) -> None:
    with pytest.raises(Refused):
        read_request(START + name + b": Bearer a\r\n" + name.upper() + b": Bearer b\r\n\r\n")


def test_the_routers_own_key_goes_no_further_where_the_replicas_have_another() -> None:
    head = read_request(START + b"x-api-key: ours\r\nauthorization: Bearer ours\r\n\r\n")
    sent = head.forwarded(b"h", 0, b"Bearer theirs")
    assert b"ours" not in sent
    assert sent.count(b"Bearer theirs") == 1
    assert head.forwarded(b"h", 0).count(b"ours") == 2, "without another key it is the replicas' too"


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("status", [200, 204, 304])
@pytest.mark.parametrize(
    "lines", [b"Content-Length:\r\nTransfer-Encoding: chunked\r\n", b"Content-Length: +5\r\n", b"Content-Length:\r\n"]
)
def test_answers_that_are_read_in_two_ways_are_refused(method: bytes, status: int, lines: bytes) -> None:
    with pytest.raises(Refused):
        read_response(b"HTTP/1.1 %d X\r\n%b\r\n" % (status, lines), method)
