"""What a request says of its session, without its body being parsed."""

from __future__ import annotations

import re
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
SEARCH_BYTES = 256 * 1024
"""How far into a body the first message of its user is looked for."""
MOST_LOOKS = 32
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
    """What the turns of one conversation share and others do not: the head of the body and its user's first message.

    The head alone would not do: the conversations of an agent begin with the same system prompt. Quotes inside of JSON
    strings are escaped, so ``"user"`` is none of somebody's text.
    """
    text = body[0]
    if len(text) < SEARCH_BYTES and len(body) > 1:
        text = b"".join(body[:64])
    at = _first_of_the_user(text)
    if at < 0:
        return blake2b(text[:PREFIX_BYTES], digest_size=16).digest()
    # Up to the end of the first text, or earlier where that has a quote before a brace: the next turn has it as well.
    end = text.find(b'"}', at + 6, at + PREFIX_BYTES)
    said = text[at : end if end >= 0 else at + PREFIX_BYTES]
    return blake2b(text[: min(at, PREFIX_BYTES)] + said, digest_size=16).digest()


def _first_of_the_user(text: bytes) -> int:
    """Where its role is named; -1 if nowhere, also after MOST_LOOKS of others, so that no body is expensive."""
    at = -6
    for _ in range(MOST_LOOKS):
        at = text.find(b'"user"', at + 6, SEARCH_BYTES)
        if at < 0 or _ROLE.search(text, max(0, at - 32), at):
            return at
    return -1


_ROLE = re.compile(rb'"role"\s*:\s*\Z')
