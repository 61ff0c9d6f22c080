"""What a recorded exchange says: which requests can be recorded, and the token ids and the text of their answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from optistack_routing.http.chunked import Chunked
from optistack_routing.http.head import Refused

FIELD = b'"return_token_ids":true'
PATHS = (b"/v1/completions", b"/v1/chat/completions")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
CONSTRAINTS = (
    "logit_bias",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "allowed_token_ids",
    "bad_words",
)
"""Under these the target says what it would not say by itself."""


@dataclass
class Exchange:
    """``prompt`` and ``answer`` are token ids, ``text`` the words of both that could be seen."""

    prompt: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


def asked(body: bytes) -> dict[str, Any] | None:
    """The request in ``body`` when its answer can be recorded: one plain answer, to a prompt of which the text is
    there to be looked at."""
    try:
        request = json.loads(body)
    except ValueError:
        return None
    if not isinstance(request, dict) or request.get("return_token_ids") is False:
        return None
    if request.get("n", 1) != 1 or request.get("echo") or any(request.get(key) for key in CONSTRAINTS):
        return None
    prompt = request.get("prompt")
    if isinstance(prompt, str) or (prompt is None and _plain(request.get("messages"))):
        return request
    return None


def with_ids(body: bytes) -> bytes:
    """``body`` with the wish for token ids as its last field; nothing else of it is changed."""
    whole = body.rstrip()
    inner = whole[:-1].rstrip()
    return inner + (b"" if inner.endswith(b"{") else b",") + FIELD + b"}"


def words(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from words(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from words(one)


def read_exchange(answer: bytes) -> Exchange | None:
    """What an answer, head and body as they went to the client, says; None without token ids or when it was cut off."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lower = head.lower()
    if not lower.startswith((b"http/1.1 200", b"http/1.0 200")) or b"\r\ncontent-encoding:" in lower:
        return None
    if b"\r\ntransfer-encoding:" in lower:
        parts: list[bytes] = []
        try:
            Chunked().feed(body, parts)
        except Refused:
            return None
        body = b"".join(parts)
    found = Exchange()
    try:
        if b"text/event-stream" in lower:
            ended = False
            for line in body.splitlines():
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    ended = data == b"[DONE]"
                    if not ended:
                        _add(found, json.loads(data))
            if not ended:
                return None
        else:
            _add(found, json.loads(body))
    except (ValueError, AttributeError, IndexError, KeyError, TypeError):
        return None
    return found if found.prompt and found.answer else None


def _add(found: Exchange, event: dict[str, Any]) -> None:
    choices = event.get("choices") or []
    choice = choices[0] if choices else {}
    found.prompt.extend(event.get("prompt_token_ids") or choice.get("prompt_token_ids") or [])
    found.answer.extend(choice.get("token_ids") or [])
    found.text.extend(words([choice.get(key) for key in ("text", "message", "delta")]))


def _plain(messages: Any) -> bool:
    """Whether ``messages`` are there and hold text alone: a picture's tokens are no text that a drafter could read."""
    if not isinstance(messages, list) or not messages:
        return False
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else []
        if any(not isinstance(part, dict) or part.get("type") != "text" for part in parts):
            return False
    return True
