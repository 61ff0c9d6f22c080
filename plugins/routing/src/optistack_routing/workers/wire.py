"""How the processes talk: a line of JSON each way, over a pair of sockets that nobody else can reach."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast


class Wire(asyncio.Protocol):
    """One end. ``heard`` is called with each message."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._rest = b""

    def heard(self, message: dict[str, Any]) -> None:
        raise NotImplementedError

    def say(self, message: dict[str, Any]) -> None:
        """Nothing happens when the other end is gone; ``connection_lost`` says so."""
        if not self._transport.is_closing():
            self._transport.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self.heard(json.loads(line))

    def hang_up(self) -> None:
        self._transport.abort()
