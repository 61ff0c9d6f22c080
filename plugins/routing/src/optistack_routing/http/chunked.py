"""Chunked bodies: where they end, to the byte, and what is in them."""

from __future__ import annotations

import re

from optistack_routing.http.head import Refused

MAX_LINE_BYTES = 256
MAX_TRAILER_BYTES = 8192

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")

_KNOWN: dict[bytes, int] = {}
"""Size lines that were read before: chunks of a stream are of a few sizes, and a look-up is cheaper than a match."""
MAX_KNOWN = 8192

_SIZE, _DATA, _DATA_END, _TRAILERS = range(4)


class Chunked:
    """Follows one chunked body through the pieces in which it arrives (RFC 9112, section 7.1)."""

    __slots__ = ("_left", "_line", "_state", "_status", "_trailer_bytes", "done")

    def __init__(self, status: int = 400) -> None:
        """``status`` is the one of the Refused that a malformed body raises."""
        self._state = _SIZE
        self._left = 0
        self._line = b""
        self._trailer_bytes = 0
        self._status = status
        self.done = False

    def feed(self, data: bytes, content: list[bytes] | None = None) -> int:
        """How many bytes of ``data`` belong to the body, all of them until it is ``done``.

        What the chunks hold is appended to ``content``. Raises Refused for anything that is not the grammar.
        """
        at, end = 0, len(data)
        while at < end:
            state = self._state
            if state == _SIZE:
                if not self._line:
                    line_end = data.find(b"\r\n", at, at + MAX_LINE_BYTES)
                    if line_end > 0:
                        line = data[at:line_end]
                        size = _KNOWN.get(line, -1)
                        if size < 0:
                            size = self._size(line)
                        after = line_end + 2 + size
                        if size and after + 2 <= end:  # the whole chunk is here, as it mostly is
                            if not data.startswith(b"\r\n", after):
                                raise Refused(self._status, "A chunk is longer than it says.")
                            if content is not None:
                                content.append(data[line_end + 2 : after])
                            at = after + 2
                            continue
                        at = line_end + 2
                        self._left = size
                        self._state = _DATA if size else _TRAILERS
                        continue
                taken, at = self._take_line(data, at, MAX_LINE_BYTES)
                if taken is not None:
                    self._left = self._size(taken)
                    self._state = _DATA if self._left else _TRAILERS
            elif state == _DATA:
                take = min(self._left, end - at)
                if content is not None:
                    content.append(data[at : at + take])
                at += take
                self._left -= take
                if not self._left:
                    self._state = _DATA_END
            else:
                taken, at = self._take_line(data, at, MAX_TRAILER_BYTES)
                if taken is None:
                    continue
                if state == _DATA_END:
                    if taken:
                        raise Refused(self._status, "A chunk is longer than it says.")
                    self._state = _SIZE
                elif not taken:
                    self.done = True
                    return at
                else:
                    self._trailer_bytes += len(taken)
                    if self._trailer_bytes > MAX_TRAILER_BYTES or not _TRAILER.fullmatch(taken):
                        raise Refused(self._status, "The trailer of a chunked body is malformed.")
        return at

    def _size(self, line: bytes) -> int:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise Refused(self._status, "The size of a chunk is not a hexadecimal number.")
        size = int(match[1], 16)
        if len(_KNOWN) < MAX_KNOWN and len(line) <= 8:
            _KNOWN[line] = size
        return size

    def _take_line(self, data: bytes, at: int, limit: int) -> tuple[bytes | None, int]:
        """The rest of a line that ends with CRLF, or None while it has not come; and where to go on."""
        held = len(self._line)
        line = self._line + data[at : at + limit + 2]
        stop = line.find(b"\r\n")
        if stop >= 0:
            self._line = b""
            return line[:stop], at + stop + 2 - held
        if len(line) > limit or b"\n" in line or (self._state == _DATA_END and line not in (b"", b"\r")):
            raise Refused(self._status, "A line of a chunked body does not end as it should.")
        self._line = line
        return None, len(data)
