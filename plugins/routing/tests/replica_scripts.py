"""What a mock replica does with a request, where it does not answer it."""

from __future__ import annotations

from typing import Any

from plugins.routing.tests.rig import Heard, MockReplica

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def hang(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
    """Answers nothing, until the router goes away."""
    await reader.read()
    raise ConnectionError


async def head_then_hang(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
    writer.write(HEAD)
    await hang(replica, heard, reader, writer)


async def begin_then_hang(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
    writer.write(HEAD + b"5\r\nfirst\r\n")
    await hang(replica, heard, reader, writer)


async def reset(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
    writer.transport.abort()
    raise ConnectionError
