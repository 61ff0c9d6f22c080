"""Heads of requests and responses: read strictly, and written again without what belongs to one hop."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_FIELDS = 200

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110, section 5.6.2
_REQUEST_LINE = re.compile(rb"([A-Z]{1,20}) (/[\x21-\x7e]*) HTTP/1\.([01])\r\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})((?: [\t\x20-\x7e\x80-\xff]*)?)\r\n")
_FIELD = re.compile(rb"(?<=\n)(" + _TOKEN + rb"+):([\t\x20-\x7e\x80-\xff]*+)\r\n")
"""Only at the beginning of a line and without going back, so that no head takes more than one look at each byte."""
_DIGITS = re.compile(rb"[0-9]{1,15}")

HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade", b"proxy-authenticate"))
"""What a relay answers for itself on each side (RFC 9110, section 7.6.1), whether Connection names it or not."""

_NEVER_NAMED = frozenset((b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization"))
"""A Connection header that names one of these would make us drop what the next hop cannot do without."""


class Refused(Exception):
    """A message that is not forwarded. ``status`` is what a client is told; ``reason`` is one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(slots=True)
class RequestHead:
    """``fields`` as they came, ``by_name`` the stripped value of each by its name in lower case.

    ``length``     bytes of the body, or None when it is chunked
    ``keep_alive`` whether the client may send another request on this connection
    """

    method: bytes
    target: bytes
    minor: int
    fields: list[tuple[bytes, bytes]]
    by_name: dict[bytes, bytes]
    length: int | None = 0
    keep_alive: bool = True
    dropped: frozenset[bytes] = HOP_BY_HOP

    def forwarded(self, host: bytes, length: int, authorization: bytes | None = None) -> bytes:
        """The head for the next hop: the same bytes, less this hop's fields, with one plain ``Content-Length``.

        The body was read to its end, so it is sent with its length whatever its framing was: chunked bodies cannot be
        read in two ways further on. ``host`` is used for a request of HTTP/1.0 that has none. ``authorization`` takes
        the place of the client's key, in whichever header that came.
        """
        lines = [b"%b %b HTTP/1.%d" % (self.method, self.target, self.minor)]
        dropped = self.dropped
        for name, value in self.fields:
            lower = name.lower()
            if lower in dropped or lower in _REPLACED or (authorization is not None and lower in _KEYS):
                continue
            lines.append(name + b":" + value)
        if b"host" not in self.by_name:
            lines.append(b"Host: " + host)
        if authorization is not None:
            lines.append(b"Authorization: " + authorization)
        if length or b"content-length" in self.by_name or self.length is None:
            lines.append(b"Content-Length: %d" % length)
        lines.append(b"\r\n")
        return b"\r\n".join(lines)


_SINGLE = (b"host", b"content-length", b"transfer-encoding", b"authorization", b"x-api-key")
"""Of two of these, we might go by one and the replica by the other."""

_KEYS = frozenset((b"authorization", b"x-api-key"))

_REPLACED = frozenset((b"content-length", b"transfer-encoding", b"trailer", b"expect"))


@dataclass(slots=True)
class ResponseHead:
    """``length`` bytes of the body; None when it is ``chunked`` or ends with the connection."""

    status: int
    reason: bytes
    fields: list[tuple[bytes, bytes]]
    length: int | None = None
    chunked: bool = False
    keep_alive: bool = True
    dropped: frozenset[bytes] = HOP_BY_HOP
    by_name: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def until_close(self) -> bool:
        return self.length is None and not self.chunked

    def forwarded(self, close: bool, extra: bytes = b"") -> bytes:
        """The head for the client: the same bytes, less this hop's fields. ``extra`` is whole lines."""
        lines = [b"HTTP/1.1 %d%b" % (self.status, self.reason)]
        dropped = self.dropped
        for name, value in self.fields:
            if name.lower() not in dropped:
                lines.append(name + b":" + value)
        if close:
            lines.append(b"Connection: close")
        lines.append(extra + b"\r\n")
        return b"\r\n".join(lines)


def read_request(head: bytes) -> RequestHead:
    """The request whose head is ``head``, its empty line included. Raises Refused with 400, 417, 431, 501 or 505."""
    line = _REQUEST_LINE.match(head)
    if line is None:
        raise _bad_request_line(head)
    method, target, minor = line[1], line[2], int(line[3])
    fields, by_name, repeated = _fields(head, line.end(), 400)
    if repeated:
        for name in _SINGLE:
            if name in repeated:
                raise Refused(400, f"There is more than one {name.decode().title()} header.")
    if minor == 1 and b"host" not in by_name:
        raise Refused(400, "There is no Host header.")
    if b"#" in target:
        raise Refused(400, "The request target has a fragment.")
    request = RequestHead(method, target, minor, fields, by_name)
    coding, length = by_name.get(b"transfer-encoding"), by_name.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise Refused(400, "There is a Content-Length beside a Transfer-Encoding.")
        if minor == 0:
            raise Refused(400, "HTTP/1.0 has no Transfer-Encoding.")
        if coding.lower() != b"chunked":
            raise Refused(501, "The only Transfer-Encoding that is served is chunked.")
        request.length = None
    elif length is not None:
        request.length = _length(length, 400)
    connection = by_name.get(b"connection")
    if connection is None:
        request.keep_alive = minor == 1
    else:
        request.keep_alive, request.dropped = _connection(connection, minor)
        if minor == 0:  # a client of HTTP/1.0 would have to be told; one request for each connection is enough for it
            request.keep_alive = False
    if b"upgrade" in by_name and by_name[b"upgrade"].lower() != b"h2c":
        # h2c is an offer that a server may pass over; whoever asks for another protocol cannot go on without it.
        raise Refused(501, "Upgrade is not served: this router speaks HTTP/1.1 only.")
    if b"expect" in by_name and by_name[b"expect"].lower() != b"100-continue":
        raise Refused(417, "The only expectation that is met is 100-continue.")
    return request


def read_response(head: bytes, method: bytes) -> ResponseHead:
    """The response to ``method`` whose head is ``head``, its empty line included. Raises Refused with 502."""
    line = _STATUS_LINE.match(head)
    if line is None:
        raise Refused(502, "The replica's answer does not begin with a status line.")
    minor, status = int(line[1]), int(line[2])
    fields, by_name, repeated = _fields(head, line.end(), 502)
    response = ResponseHead(status, line[3] or b" ", fields, by_name=by_name)
    connection = by_name.get(b"connection")
    if connection is None:
        response.keep_alive = minor == 1
    else:
        response.keep_alive, response.dropped = _connection(connection, minor)
    coding, length = by_name.get(b"transfer-encoding"), by_name.get(b"content-length")
    if b"content-length" in repeated or b"transfer-encoding" in repeated or (coding is not None and length is not None):
        raise Refused(502, "The replica's answer says in two ways how long it is.")
    if length is not None:
        response.length = _length(length, 502)
    if coding is not None and (coding.lower() != b"chunked" or minor == 0):
        raise Refused(502, "The replica's answer has a Transfer-Encoding that is not chunked.")
    if method == b"HEAD" or status in (204, 304) or status < 200:
        response.length = 0
    elif coding is not None:
        response.chunked = True
    elif length is None:
        response.keep_alive = False
    return response


def _fields(
    head: bytes, start: int, status: int
) -> tuple[list[tuple[bytes, bytes]], dict[bytes, bytes], frozenset[bytes] | set[bytes]]:
    """The header lines of ``head`` from ``start`` on. They are the grammar's only when they cover every byte of it."""
    fields: list[tuple[bytes, bytes]] = _FIELD.findall(head, start)
    if start + sum([len(name) + len(value) for name, value in fields]) + 3 * len(fields) + 2 != len(head):
        raise Refused(status, _what_is_wrong(head[start:]))
    if len(fields) > MAX_FIELDS:
        raise Refused(431 if status == 400 else status, f"There are more than {MAX_FIELDS} headers.")
    by_name = {name.lower(): value.strip(b" \t") for name, value in fields}
    if len(by_name) == len(fields):
        return fields, by_name, frozenset()
    seen: set[bytes] = set()
    repeated = {low for low in (name.lower() for name, _ in fields) if low in seen or seen.add(low)}  # type: ignore[func-returns-value]  # add() is called for what it does
    if b"connection" in repeated:
        by_name[b"connection"] = b",".join(value for name, value in fields if name.lower() == b"connection")
    return fields, by_name, repeated


def _connection(value: bytes, minor: int) -> tuple[bool, frozenset[bytes]]:
    """Whether the connection stays open, and what is dropped with it."""
    words = [word.strip(b" \t").lower() for word in value.split(b",")]
    keep = b"close" not in words and (minor == 1 or b"keep-alive" in words)
    named = frozenset(words) - _NEVER_NAMED - {b"close", b"", b"keep-alive"}
    return keep, HOP_BY_HOP | named if named else HOP_BY_HOP


def _length(value: bytes, status: int) -> int:
    if not _DIGITS.fullmatch(value):
        raise Refused(status, "The Content-Length is not a number of bytes.")
    return int(value)


def _bad_request_line(head: bytes) -> Refused:
    line = head.split(b"\n", 1)[0].rstrip(b"\r")
    words = line.split(b" ")
    if line.startswith(b"PRI * HTTP/2"):
        return Refused(505, "This router speaks HTTP/1.1; the client began with HTTP/2.")
    if len(words) == 3 and words[2].startswith(b"HTTP/") and words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        return Refused(505, "This router speaks HTTP/1.1.")
    if words[0] == b"CONNECT":
        return Refused(501, "CONNECT is not served: this is no forward proxy.")
    return Refused(400, "The request does not begin with METHOD /PATH HTTP/1.1.")


def _what_is_wrong(lines: bytes) -> str:
    plain = lines.replace(b"\r\n", b"")
    if b"\n" in plain or b"\r" in plain:
        return "A header line ends with a bare CR or LF."
    for line in lines.split(b"\r\n"):
        if line[:1] in (b" ", b"\t"):
            return "A header is folded over several lines."
        if line and re.match(_TOKEN + rb"[ \t]+:", line):
            return "There is space between a header's name and its colon."
    return "A header line is not NAME: VALUE."
