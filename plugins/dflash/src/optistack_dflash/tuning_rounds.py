"""Measuring the rounds that tuning works with, on a running vLLM that drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import TYPE_CHECKING

from optistack.errors import CheckFailedError
from optistack_dflash.probe import CODE_PROMPTS
from optistack_dflash.probe_counters import vllm_counters, vllm_moved
from optistack_dflash.prompt_file import Prompt
from optistack_dflash.tuning import Round

if TYPE_CHECKING:
    from optistack.verify.endpoint import Endpoint

BUILT_IN = tuple(Prompt("prompt", text) for text in CODE_PROMPTS)
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def measure_round(
    endpoint: Endpoint,
    concurrency: int,
    *,
    max_tokens: int,
    prompts: Sequence[Prompt] = BUILT_IN,
    answers: int | None = None,
) -> Round:
    """Answer ``prompts`` greedily, ``concurrency`` at once, each of up to ``max_tokens``, ending where the model ends:
    ``answers`` of them, or each once and at least two a user. Nothing else may use the engine meanwhile.

    CheckFailedError when the engine does not draft or does not count it as vLLM does.
    """
    before, positions_before = vllm_counters(endpoint), _positions(endpoint)
    model = endpoint.model()
    asked = islice(cycle(prompts), answers or max(len(prompts), 2 * concurrency))
    with ThreadPoolExecutor(concurrency) as pool:
        answered = list(pool.map(lambda prompt: _answer(endpoint, model, prompt, max_tokens), asked))
    moved = vllm_moved(endpoint, before)
    if moved is None or not moved.drafts:
        raise CheckFailedError(
            f"{endpoint.url} does not draft, or counts it otherwise than vLLM does.",
            fix="Tune a running vLLM that was started with a drafter and shows /metrics.",
        )
    positions = _positions(endpoint)
    shares = ((positions[name] - positions_before.get(name, 0.0)) / moved.drafts for name in sorted(positions, key=int))
    return Round(
        concurrency=concurrency,
        tokens=sum(tokens for tokens, _ in answered),
        request_s=sum(seconds for _, seconds in answered),
        drafts=moved.drafts,
        draft_tokens=round(moved.tokens_per_draft),
        by_position=tuple(shares),
    )


def _answer(endpoint: Endpoint, model: str, prompt: Prompt, max_tokens: int) -> tuple[int, float]:
    """Tokens of the answer, and its seconds."""
    began = time.monotonic()
    if prompt.kind != "messages":
        answer = endpoint.complete(prompt.given, max_tokens=max_tokens, model=model)
        return answer.completion_tokens, time.monotonic() - began
    body = {"model": model, "messages": prompt.given, "max_tokens": max_tokens, "temperature": 0.0}
    response = endpoint.request("POST", "/v1/chat/completions", json=body)
    if response.status_code != 200:
        raise CheckFailedError(f"{endpoint.url} answered {response.status_code} to a chat: {response.text[:300]}")
    return int(response.json()["usage"]["completion_tokens"]), time.monotonic() - began


def _positions(endpoint: Endpoint) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in endpoint.metrics().find(PER_POSITION):
        position = sample.labels["position"]
        found[position] = found.get(position, 0.0) + sample.value
    return found
