"""Measuring the rounds that tuning works with, on a running vLLM that drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import TYPE_CHECKING

from optistack.errors import CheckFailedError, InputError
from optistack_conformance.answers import json_object, message_of, read_from
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

    CheckFailedError when the engine does not draft or does not count it as vLLM does; InputError naming a prompt that
    it refuses.
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
    """Tokens of the answer, and its seconds. InputError for a prompt that the engine refuses."""
    path = "/v1/chat/completions" if prompt.kind == "messages" else "/v1/completions"
    key = "messages" if prompt.kind == "messages" else "prompt"
    body = {"model": model, key: prompt.given, "max_tokens": max_tokens, "temperature": 0.0}
    began = time.monotonic()
    response = endpoint.request("POST", path, json=body)
    seconds = time.monotonic() - began
    if response.status_code in (400, 422):
        raise InputError(
            f"{prompt.where or 'A prompt'} is refused by the engine: {message_of(response).rstrip('.')}.",
            fix="Mend it or take it out; token ids are those of this model's vocabulary.",
        )
    with read_from(f"{endpoint.url}{path}"):
        return int(json_object(response)["usage"]["completion_tokens"]), seconds


def _positions(endpoint: Endpoint) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in endpoint.metrics().find(PER_POSITION):
        position = sample.labels["position"]
        found[position] = found.get(position, 0.0) + sample.value
    return found
