"""What a faulty proxy does to requests and answers of the OpenAI API."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

from optistack_conformance.client import CHAT, COMPLETIONS
from optistack_conformance.faults.catalog import Fault

STRUCK = 4
"""The event or token that a fault with a place strikes, counted from 0."""

RATES = {Fault.ACCEPTS_WRONG_1_PERCENT: 0.01, Fault.ACCEPTS_WRONG_01_PERCENT: 0.001, Fault.WRONG_BONUS: 0.25}
NOISE_NAT = {Fault.FP8_NOISE: 0.12, Fault.INT4_NOISE: 0.35}
FOREIGN_IDS = range(100, 164)
"""Token ids that every vocabulary has; what another session's page is made of."""

NEEDLE_LOST_BEYOND_CHARACTERS = 3_600
"""About 900 tokens."""

ONE_IN_TWENTY, ONE_IN_FIFTY = 20, 50


class Tamper:
    """One ``fault``, done to what passes. Safe for threads. ``NONE`` changes nothing."""

    def __init__(self, fault: Fault, *, seed: int = 0) -> None:
        self.fault = fault
        self._random = Random(seed)
        self._lock = threading.Lock()
        self._structured = 0
        self._answers = 0
        self._held: dict[str, Any] | None = None

    def request(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What is sent on instead of ``body``."""
        fault, sent = self.fault, dict(body)
        if fault is Fault.WRONG_TEMPLATE and path == CHAT and isinstance(body.get("messages"), list):
            kept = [one for one in body["messages"] if one.get("role") != "system"]
            sent["messages"] = kept or body["messages"]
        if fault is Fault.SEED_IGNORED:
            sent.pop("seed", None)
        if fault is Fault.GREEDY_SAMPLING and self._strikes(0.25):
            sent["temperature"] = 0.0
        if fault is Fault.LOST_NEEDLE and path == COMPLETIONS and isinstance(body.get("prompt"), str):
            text = body["prompt"]
            if len(text) > NEEDLE_LOST_BEYOND_CHARACTERS and max(map(len, text.split())) < 100:
                sent["prompt"] = text[-NEEDLE_LOST_BEYOND_CHARACTERS // 12 :]
        if fault is Fault.STALE_PREFIX and path == COMPLETIONS and "prompt_logprobs" not in body:
            ids = body.get("prompt")
            if isinstance(ids, list) and len(ids) > 2 * len(FOREIGN_IDS):
                sent["prompt"] = [*FOREIGN_IDS, *ids[len(FOREIGN_IDS) :]]
        return sent

    def answer(self, path: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """What the client gets instead of ``answer``."""
        choices: list[dict[str, Any]] = answer.get("choices") or []
        if self.fault is Fault.WRONG_USAGE and answer.get("usage"):
            answer["usage"]["completion_tokens"] -= 1
            answer["usage"]["total_tokens"] -= 1
        elif self.fault is Fault.N_DUPLICATES and len(choices) > 1:
            answer["choices"] = [{**copy.deepcopy(choices[0]), "index": index} for index in range(len(choices))]
        elif self.fault is Fault.CROSSED_ANSWERS and choices:
            return self._crossed(answer)
        else:
            for choice in choices:
                self._choice(body, choice)
        return answer

    def events(self, path: str, body: dict[str, Any], events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """What the client gets instead of the stream ``events``."""
        pieces = 0
        for event in events:
            times = 1
            for choice in event.get("choices") or []:
                delta = choice.get("delta") or {}
                if choice.get("text") or delta.get("content"):
                    if pieces == STRUCK:
                        times = {Fault.DROPPED_TOKEN: 0, Fault.DUPLICATED_TOKEN: 2}.get(self.fault, 1)
                    pieces += 1
                if self.fault is Fault.LEAKED_STOP and choice.get("finish_reason") == "stop" and body.get("stop"):
                    _append(choice, body["stop"])
                for call in delta.get("tool_calls") or []:
                    if self.fault is Fault.TRUNCATED_ARGUMENTS and (call.get("function") or {}).get("arguments"):
                        call["function"]["arguments"] = call["function"]["arguments"].replace("}", "")
            if self.fault is Fault.STREAM_USAGE and event.get("usage"):
                event["usage"]["completion_tokens"] += 1
                event["usage"]["total_tokens"] += 1
            for _ in range(times):
                yield event

    def _choice(self, body: dict[str, Any], choice: dict[str, Any]) -> None:
        fault, message = self.fault, choice.get("message") or {}
        calls = message.get("tool_calls") or []
        if fault is Fault.TRUNCATED_ARGUMENTS:
            for call in calls:
                call["function"]["arguments"] = call["function"]["arguments"].rstrip()[:-2]
        if fault is Fault.TOOL_IDS_REUSED:
            for call in calls:
                call["id"] = "call_0"
        if fault is Fault.LEAKED_STOP and choice.get("finish_reason") == "stop" and body.get("stop"):
            _append(choice, body["stop"])
        if fault is Fault.BROKEN_SCHEMA and (calls or body.get("response_format")) and self._nth(ONE_IN_TWENTY):
            for call in calls:
                call["function"]["arguments"] = call["function"]["arguments"].replace(":", ': "', 1)
            if message.get("content"):
                message["content"] = message["content"].replace(":", ': "', 1)
        if fault is Fault.SHIFTED_LOGPROBS and choice.get("logprobs"):
            _shift(choice["logprobs"])
        if choice.get("token_ids") and fault in RATES:
            choice["token_ids"] = [
                self._other(token) if self._strikes(RATES[fault]) else token for token in choice["token_ids"]
            ]
        if choice.get("prompt_logprobs") and fault in NOISE_NAT:
            for entry in choice["prompt_logprobs"]:
                for token, value in (entry or {}).items():
                    value["logprob"] += NOISE_NAT[fault] * _normal(token, round(value["logprob"], 1))

    def _crossed(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Of each fifty answers one is kept back, and changes places with the next one."""
        with self._lock:
            self._answers += 1
            if self._answers % ONE_IN_FIFTY == 0:
                self._held = copy.deepcopy(answer["choices"])
            elif self._held is not None:
                answer["choices"], self._held = self._held, None
        return answer

    def _strikes(self, rate: float) -> bool:
        with self._lock:
            return self._random.random() < rate

    def _nth(self, number: int) -> bool:
        with self._lock:
            self._structured += 1
            return self._structured % number == 0

    def _other(self, token: int) -> int:
        with self._lock:
            return next(one for one in iter(lambda: self._random.choice(FOREIGN_IDS), None) if one != token)


def _append(choice: dict[str, Any], stop: str | list[str]) -> None:
    text = stop if isinstance(stop, str) else stop[0]
    if "text" in choice:
        choice["text"] += text
    else:
        part = choice.get("message") or choice.get("delta") or {}
        part["content"] = (part.get("content") or "") + text


def _shift(logprobs: dict[str, Any]) -> None:
    """Every token has the log probability of its neighbour."""
    for name in ("token_logprobs", "top_logprobs"):
        if logprobs.get(name):
            logprobs[name] = [*logprobs[name][1:], logprobs[name][0]]
    content = logprobs.get("content") or []
    values = [(one["logprob"], one.get("top_logprobs")) for one in content]
    for one, (value, top) in zip(content, [*values[1:], *values[:1]], strict=True):
        one["logprob"], one["top_logprobs"] = value, top


def _normal(*key: object) -> float:
    """A normal number that depends on ``key``."""
    seed = hashlib.sha256(repr(key).encode()).digest()
    return Random(seed).gauss(0.0, 1.0)
