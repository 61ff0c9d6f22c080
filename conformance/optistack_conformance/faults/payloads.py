"""Pieces of requests and answers in the dialect of the OpenAI API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from optistack_conformance.client import CHAT, COMPLETIONS
from optistack_conformance.faults.generate import Step

MAX_TOKENS = 60_000


class BadRequestError(Exception):
    """Answered with a 4xx."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def check(path: str, body: dict[str, Any]) -> None:
    if body.get("model") != "toy":
        raise BadRequestError(f"there is no model {body.get('model')!r}", 404)
    if path == CHAT and not isinstance(body.get("messages"), list):
        raise BadRequestError("messages is no list")
    if path == COMPLETIONS and "prompt" not in body:
        raise BadRequestError("there is no prompt")
    if path not in (CHAT, COMPLETIONS):
        raise BadRequestError(f"no route {path}", 404)
    limits = {"max_tokens": (1, MAX_TOKENS), "temperature": (0, 2), "top_p": (0, 1), "n": (1, 16)}
    for name, (low, high) in limits.items():
        if body.get(name) is not None and not low <= body[name] <= high:
            raise BadRequestError(f"{name} is {body[name]}, not in {low} to {high}")


def piece_of(chat: bool, text: str, finish: str | None, *, role: bool = False) -> dict[str, Any]:
    if not chat:
        return {"index": 0, "text": text, "finish_reason": finish}
    delta = {"role": "assistant", "content": text} if role else {"content": text}
    return {"index": 0, "delta": delta, "finish_reason": finish}


def tool_deltas(call_id: str, arguments: str) -> Iterator[dict[str, Any]]:
    yield {"index": 0, "id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    for start in range(0, len(arguments), 5):
        yield {"index": 0, "function": {"arguments": arguments[start : start + 5]}}


def stops_of(body: dict[str, Any]) -> list[str]:
    stop = body.get("stop") or []
    return [stop] if isinstance(stop, str) else list(stop)


def before_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    at = min((text.index(stop) for stop in stops if stop in text), default=-1)
    return (text, False) if at < 0 else (text[:at], True)


def text_of(steps: Sequence[Step]) -> str:
    return bytes(step.token for step in steps if step.token < 256).decode(errors="replace")


def logprobs(steps: Sequence[Step], top: int) -> dict[str, Any]:
    def best(step: Step) -> dict[str, float]:
        order = np.argsort(-step.logprobs)[:top]
        return {chr(token): float(step.logprobs[token]) for token in map(int, order)}

    return {
        "tokens": [text_of([step]) for step in steps],
        "token_logprobs": [float(step.logprobs[step.token]) for step in steps],
        "top_logprobs": [best(step) for step in steps],
    }


def chat_logprob(step: Step, top: int) -> dict[str, Any]:
    order = [int(token) for token in np.argsort(-step.logprobs)[:top]]
    return {
        "token": chr(step.token),
        "logprob": float(step.logprobs[step.token]),
        "top_logprobs": [{"token": chr(token), "logprob": float(step.logprobs[token])} for token in order],
    }
