"""What a request says of its session, without its body being parsed."""

from __future__ import annotations

from hashlib import blake2b
from math import ceil

from optistack_routing.http.head import RequestHead
from optistack_routing.policy.base import Request

SESSION_HEADERS = (
    "x-session-id",
    "modal-session-id",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
)
"""First the general ones (of vllm-router, llm-d and Ray Serve; of Modal), then what coding agents send by themselves:
Claude Code, Codex (by its age) and OpenCode."""

MAX_SESSION_BYTES = 256
PREFIX_BYTES = 4096
BYTES_A_TOKEN = 4.0
"""Of English and code in JSON; only the ratios of prompts to each other matter to a policy."""


class Reader:
    """Makes a policy's view of a request. ``headers`` in the order in which they are looked for."""

    def __init__(self, headers: tuple[str, ...] = SESSION_HEADERS, bytes_a_token: float = BYTES_A_TOKEN) -> None:
        self._headers = tuple(header.lower().encode() for header in headers)
        self._bytes_a_token = bytes_a_token

    def read(self, head: RequestHead, body: list[bytes], size_bytes: int) -> Request:
        session, prefix = None, None
        by_name = head.by_name
        for header in self._headers:
            value = by_name.get(header)
            if value:
                session = session_name(value)
                break
        else:
            if body:
                prefix = _prefix(body)
        return Request(session=session, prompt_tokens=ceil(size_bytes / self._bytes_a_token), prefix=prefix)


def session_name(value: bytes) -> str:
    """A header's value as the name of a session; a hash of it where it is long."""
    if len(value) > MAX_SESSION_BYTES:  # as good as a name, and bounded
        return blake2b(value, digest_size=16).hexdigest()
    return value.decode("latin-1")


def _prefix(body: list[bytes]) -> bytes:
    head = body[0][:PREFIX_BYTES]
    if len(head) < PREFIX_BYTES and len(body) > 1:
        head = b"".join(body[:64])[:PREFIX_BYTES]
    return blake2b(head, digest_size=16).digest()
