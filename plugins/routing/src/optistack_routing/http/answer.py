"""Answers that the router gives by itself, as bytes."""

from __future__ import annotations

import json

REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    417: b"Expectation Failed",
    431: b"Request Header Fields Too Large",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}


def answer_head(status: int, kind: bytes, length: int, *, close: bool, extra: bytes = b"") -> bytes:
    """``extra`` is whole header lines."""
    return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n" % (
        status,
        REASONS.get(status, b"Unknown"),
        kind,
        length,
        b"Connection: close\r\n" if close else b"",
        extra,
    )


def error_body(status: int, reason: str) -> bytes:
    """An error in the form that OpenAI's clients read."""
    kind = "invalid_request_error" if status < 500 else "router_error"
    return json.dumps({"error": {"message": reason, "type": kind, "code": status}}).encode()
