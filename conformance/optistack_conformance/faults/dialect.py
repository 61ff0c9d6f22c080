"""Requests of the OpenAI API, with vLLM's extensions, answered by the toy model."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np

from optistack_conformance.client import CHAT, COMPLETIONS
from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.generate import Counters, Decoder, Step
from optistack_conformance.faults.payloads import (
    MAX_TOKENS,
    BadRequestError,
    before_stop,
    chat_logprob,
    check,
    logprobs,
    piece_of,
    stops_of,
    text_of,
    tool_deltas,
)
from optistack_conformance.faults.script import Script
from optistack_conformance.faults.toy import END, EOS, PAGE_TOKENS, START, ToyModel, log_softmax

TOOL_ARGUMENTS = {"city": "Oslo", "unit": "celsius", "days": 3}
STEP_S = 0.03
"""A model this small is done before the next request is there; an engine's step takes so long that requests meet."""

STRUCK_TOKEN = 4
"""Where a stream loses or doubles a token."""


class Answerer:
    """One server's state. Requests are worked on one at a time, token by token, under a lock."""

    max_tokens = MAX_TOKENS

    def __init__(self, fault: Fault, *, seed: int, skill: float, device_pages: int, host_tier: bool) -> None:
        self.fault = fault
        self.counters = Counters()
        self._model = ToyModel(fault, noise_seed=seed, device_pages=device_pages, host_tier=host_tier)
        self._decoder = Decoder(self._model, seed, self.counters)
        self._script = Script(fault, skill)
        self._lock = threading.RLock()
        self._ids = itertools.count(1)

    def numbers(self) -> dict[str, int]:
        """For the metrics page."""
        with self._lock:
            return {
                "running": self.counters.running,
                "prompted": self.counters.prompted,
                "drafts": self.counters.drafts,
                "accepted": self.counters.accepted,
                "tier": self._model.cache.tier_tokens,
                "page": PAGE_TOKENS,
                "tokens": self._model.cache.device_pages * PAGE_TOKENS,
            }

    def chat_ids(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The chat template: each message between a start and an end token, then the opening of the answer."""
        ids: list[int] = []
        for message in messages:
            if self.fault is Fault.WRONG_TEMPLATE and message["role"] == "system":
                continue
            ids += [START, *f"{message['role']}\n{message.get('content') or ''}".encode(), END, 10]
        return [*ids, START, *b"assistant\n"]

    def whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request without a stream."""
        ids, script = self._prompt(path, body)
        number = int(body.get("n") or 1)
        choices, used, cached = [], 0, 0
        self._count(1)
        if self.fault is Fault.BATCH_KERNEL:
            time.sleep(STEP_S)
        try:
            for index in range(number):
                steps, finish, cached = self._run(body, ids, script, index)
                used += len(steps)
                choices.append(self._choice(path, body, index, ids, steps, finish))
        finally:
            self._count(-1)
        return self._head(path, body) | {"choices": choices, "usage": self._usage(len(ids), used, cached)}

    def stream(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """The events of a stream."""
        ids, script = self._prompt(path, body)
        head = self._head(path, body)
        chat = path == CHAT
        calls_tool = script is not None and bool(body.get("tools"))
        yield head | {"choices": [piece_of(chat, "", None, role=True)]}
        self._count(1)
        used, pending, text, finish = 0, b"", "", "length"
        stops = stops_of(body)
        try:
            for number, step in enumerate(self._generate(body, ids, script, 0)[0]):
                used += 1
                if step.token == EOS:
                    finish = "stop"
                    break
                copies = {Fault.DROPPED_TOKEN: 0, Fault.DUPLICATED_TOKEN: 2}.get(self.fault, 1)
                pending += bytes([step.token]) * (copies if number == STRUCK_TOKEN and not calls_tool else 1)
                text += pending.decode(errors="replace")
                pending = b""
                ready, stopped = before_stop(text, stops)
                if stopped:
                    finish, text = "stop", ready
                    break
                held = max((len(stop) for stop in stops), default=1) - 1
                if len(text) > held and not calls_tool:
                    piece, text = text[: len(text) - held], text[len(text) - held :]
                    yield head | {"choices": [piece_of(chat, piece, None)]}
            if calls_tool:
                for part in tool_deltas(f"call-{next(self._ids)}", self._arguments(text)):
                    yield head | {"choices": [{"index": 0, "delta": {"tool_calls": [part]}, "finish_reason": None}]}
                text, finish = "", "tool_calls" if body.get("tool_choice") == "required" else "stop"
            yield head | {"choices": [piece_of(chat, text, finish)]}
            if (body.get("stream_options") or {}).get("include_usage"):
                yield head | {"choices": [], "usage": self._usage(len(ids), used, 0)}
        except GeneratorExit:
            if self.fault is not Fault.LEAKED_STREAM:
                self._count(-1)
            raise
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self.counters.running += change
            self._model.batch = max(1, self.counters.running)

    def _prompt(self, path: str, body: dict[str, Any]) -> tuple[list[int], bytes | None]:
        """Token ids of the prompt, and what the model is to say to it."""
        check(path, body)
        if path == COMPLETIONS:
            prompt = body["prompt"]
            ids = list(prompt.encode()) if isinstance(prompt, str) else [int(token) for token in prompt]
            script = self._script.answer(prompt) if isinstance(prompt, str) else None
        else:
            ids = self.chat_ids(body["messages"])
            structured = body.get("tools") or body.get("response_format")
            wanted = TOOL_ARGUMENTS if "unit" in json.dumps(structured) else {"days": TOOL_ARGUMENTS["days"]}
            script = json.dumps(wanted).encode() if structured else None
        if len(ids) >= MAX_TOKENS:
            raise BadRequestError(f"the prompt has {len(ids)} tokens, the context {MAX_TOKENS}")
        return ids, script

    def _generate(
        self, body: dict[str, Any], ids: list[int], script: bytes | None, index: int
    ) -> tuple[Iterator[Step], int]:
        with self._lock:
            sums, cached = self._model.prefill(ids, use_cache=body.get("prompt_logprobs") is None)
            self.counters.prompted += len(ids)
        seed = body.get("seed")
        steps = self._decoder.steps(
            ids,
            sums,
            max_tokens=int(body.get("max_tokens") or 16),
            temperature=float(body.get("temperature", 1.0)),
            seed=None if seed is None else int(seed) * 1000 + index,
            script=script,
            ignore_eos=bool(body.get("ignore_eos")),
            warm=cached > 0,
        )
        return self._locked(steps), cached

    def _locked(self, steps: Iterator[Step]) -> Iterator[Step]:
        while True:
            with self._lock:
                step = next(steps, None)
            if step is None:
                return
            yield step

    def _run(
        self, body: dict[str, Any], ids: list[int], script: bytes | None, index: int
    ) -> tuple[list[Step], str, int]:
        generated, cached = self._generate(body, ids, script, index)
        steps, stops = [], stops_of(body)
        for step in generated:
            steps.append(step)
            if step.token == EOS and not body.get("ignore_eos"):
                return steps, "stop", cached
            if stops and before_stop(text_of(steps), stops)[1]:
                return steps, "stop", cached
        return steps, "length", cached

    def _choice(
        self, path: str, body: dict[str, Any], index: int, ids: list[int], steps: list[Step], finish: str
    ) -> dict[str, Any]:
        text = before_stop(text_of(steps), stops_of(body))[0]
        choice: dict[str, Any] = {"index": index, "finish_reason": finish}
        if path == CHAT:
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if body.get("tools"):
                function = {"name": "get_weather", "arguments": self._arguments(text)}
                message = {"role": "assistant", "content": None}
                message["tool_calls"] = [{"id": f"call-{next(self._ids)}", "type": "function", "function": function}]
                choice["finish_reason"] = "tool_calls" if body.get("tool_choice") == "required" else "stop"
            choice["message"] = message
            if body.get("logprobs"):
                content = [chat_logprob(step, int(body.get("top_logprobs") or 0)) for step in steps]
                choice["logprobs"] = {"content": content}
            return choice
        choice["text"] = text
        if body.get("logprobs") is not None:
            choice["logprobs"] = logprobs(steps, int(body["logprobs"]))
        if body.get("return_token_ids"):
            choice |= {"prompt_token_ids": ids, "token_ids": [step.token for step in steps]}
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = self._prompt_logprobs(ids, int(body["prompt_logprobs"]))
        return choice

    def _prompt_logprobs(self, ids: list[int], top: int) -> list[dict[str, Any] | None]:
        with self._lock:
            sums, _ = self._model.prefill(ids, use_cache=False)
            rows = log_softmax(self._model.logits_of_all(ids, sums, 1))
        best = np.argsort(-rows, axis=1)[:, :top]
        return [None] + [
            {str(token): {"logprob": float(row[token])} for token in (*map(int, order), ids[at + 1])}
            for at, (row, order) in enumerate(zip(rows, best, strict=True))
        ]

    def _arguments(self, text: str) -> str:
        return text[:-2] if self.fault is Fault.TRUNCATED_ARGUMENTS else text

    def _usage(self, prompt: int, completion: int, cached: int) -> dict[str, Any]:
        told = completion - (self.fault is Fault.WRONG_USAGE)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": told,
            "total_tokens": prompt + told,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _head(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"id": f"toy-{next(self._ids)}", "object": "chat.completion" if path == CHAT else "text_completion"}
