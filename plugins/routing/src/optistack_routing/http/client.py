"""One small GET, for probes: no pool, a limit on size, and the caller's on time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from optistack_routing.fleet.address import Address
from optistack_routing.http.chunked import Chunked
from optistack_routing.http.head import Refused, read_response

ClientTLS = Callable[[], ssl.SSLContext]
"""Made when the first replica with https:// is met."""

MAX_BYTES = 16 * 1024 * 1024


async def get(
    address: Address, path: str, *, tls: ClientTLS | None = None, authorization: bytes | None = None
) -> tuple[int, bytes]:
    """Status and body of ``GET path``. Raises OSError or Refused; wrap it in a timeout."""
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=tls() if tls is not None and address.tls else None, limit=256 * 1024
    )
    try:
        key = b"Authorization: %b\r\n" % authorization if authorization else b""
        writer.write(
            b"GET %b HTTP/1.1\r\nHost: %b\r\n%bConnection: close\r\n\r\n" % (path.encode(), address.authority, key)
        )
        try:
            head = read_response(await reader.readuntil(b"\r\n\r\n"), b"GET")
            if head.length is not None:
                if head.length > MAX_BYTES:
                    raise Refused(502, "The answer is too large.")
                return head.status, await reader.readexactly(head.length)
            return head.status, await _rest(reader, Chunked(502) if head.chunked else None)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise Refused(502, "The answer is cut off or has no end.") from error
    finally:
        writer.transport.abort()


async def _rest(reader: asyncio.StreamReader, chunked: Chunked | None) -> bytes:
    content: list[bytes] = []
    size = 0
    while data := await reader.read(65536):
        size += len(data)
        if size > MAX_BYTES:
            raise Refused(502, "The answer is too large.")
        if chunked is None:
            content.append(data)
            continue
        chunked.feed(data, content)
        if chunked.done:
            return b"".join(content)
    if chunked is not None:
        raise Refused(502, "The answer is cut off.")
    return b"".join(content)
