"""A request's body as it comes in."""

from __future__ import annotations

from optistack_routing.http.chunked import Chunked
from optistack_routing.http.head import Refused

MOST_PIECES = 256
"""Pieces of a body that are kept apart; smaller ones are joined, since each costs more than its bytes."""


class Body:
    """``pieces`` are what has come of it, ``size_bytes`` in all."""

    __slots__ = ("_chunked", "_joined", "_length", "_most_bytes", "pieces", "size_bytes")

    def __init__(self, length: int | None, most_bytes: int) -> None:
        """``length`` is None for a chunked one. Raises Refused for one of more than ``most_bytes``."""
        self.pieces: list[bytes] = []
        self.size_bytes = 0
        self._length = length or 0
        self._most_bytes = most_bytes
        self._chunked = Chunked() if length is None else None
        self._joined = 0  # pieces at its beginning that are joined already
        self._bound(self._length)

    def feed(self, data: bytes) -> bytes | None:
        """What comes after the body, once it is whole; None before. Raises Refused."""
        pieces = self.pieces
        if len(pieces) - self._joined > MOST_PIECES:
            pieces[self._joined :] = [b"".join(pieces[self._joined :])]
            self._joined += 1
        if self._chunked is not None:
            before = len(pieces)
            used = self._chunked.feed(data, pieces)
            self.size_bytes += sum(map(len, pieces[before:]))
            self._bound(self.size_bytes)
            return data[used:] if self._chunked.done else None
        missing = self._length - self.size_bytes
        if len(data) <= missing:
            pieces.append(data)
            self.size_bytes += len(data)
            return b"" if len(data) == missing else None
        pieces.append(data[:missing])
        self.size_bytes += missing
        return data[missing:]

    def _bound(self, size_bytes: int) -> None:
        if size_bytes > self._most_bytes:
            raise Refused(413, f"The body is larger than {self._most_bytes} bytes.")
