"""Writing at once, rather than at the end of the event loop's turn.

uvloop collects what is written and sends it after the turn, for which it wakes once more. A relay mostly writes once
for each thing that it has read, so it saves that by writing to the socket itself while nothing is collected.
"""

from __future__ import annotations

import asyncio
import os
from typing import cast

MOST_PARTS = 64  # of one writev(); the kernel takes 1,024


class Writer:
    """Writes to one connection. Without TLS straight to its socket; what that does not take goes through the transport.

    A closed descriptor's number may be another connection's a moment later, so nothing is written once the transport
    has begun to close.
    """

    __slots__ = ("_closing", "_descriptor", "_waiting_bytes", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._closing = transport.is_closing
        self._waiting_bytes = transport.get_write_buffer_size
        plain = transport.get_extra_info("sslcontext") is None
        self._descriptor = cast(int, transport.get_extra_info("socket").fileno()) if plain else -1

    def write(self, data: bytes) -> None:
        if self._closing():
            return
        descriptor = self._descriptor
        if descriptor >= 0 and not self._waiting_bytes():
            try:
                sent = os.write(descriptor, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.transport.abort()  # the other end is gone
                return
            if sent == len(data):
                return
            data = data[sent:]
        self.transport.write(data)

    def writelines(self, parts: list[bytes]) -> None:
        if self._closing():
            return
        transport = self.transport
        if self._descriptor < 0 or len(parts) > MOST_PARTS or self._waiting_bytes():
            transport.writelines(parts)
            return
        try:
            sent = os.writev(self._descriptor, parts)
        except BlockingIOError:
            sent = 0
        except OSError:
            transport.abort()
            return
        for number, part in enumerate(parts):
            if sent < len(part):
                transport.writelines([memoryview(part)[sent:], *parts[number + 1 :]])
                return
            sent -= len(part)
