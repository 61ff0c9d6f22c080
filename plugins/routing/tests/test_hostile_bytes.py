"""Bytes that cost much or mean two things."""

from __future__ import annotations

from time import perf_counter

import pytest

from optistack_routing.http.head import Refused, read_request

START = b"POST /v1/x HTTP/1.1\r\nHost: h\r\n"


@pytest.mark.parametrize("line", [b"a" * 64_000, b"a: b\rc" * 10_000, b"a:" * 32_000 + b"\0", b"a " * 32_000])
def test_a_head_that_is_none_is_refused_in_no_time(line: bytes) -> None:
    began_s = perf_counter()
    with pytest.raises(Refused):
        read_request(START + line + b"\r\n\r\n")
    assert perf_counter() - began_s < 0.5
