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
from optistack_dflash.tuning import Round

if TYPE_CHECKING:
    from optistack.verify.endpoint import Endpoint

PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def measure_round(
    endpoint: Endpoint, concurrency: int, *, max_tokens: int, prompts: Sequence[str] = CODE_PROMPTS
) -> Round:
    """Answer ``concurrency`` prompts at once, greedily, ``max_tokens`` each; nothing else may use the engine meanwhile.

    CheckFailedError when the engine does not draft or does not count it as vLLM does.
    """
    before, positions_before = vllm_counters(endpoint), _positions(endpoint)
    model = endpoint.model()
    began = time.monotonic()
    with ThreadPoolExecutor(concurrency) as pool:
        answers = list(
            pool.map(
                lambda prompt: endpoint.complete(prompt, max_tokens=max_tokens, model=model, ignore_eos=True),
                islice(cycle(prompts), concurrency),
            )
        )
    seconds = time.monotonic() - began
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
        tokens=sum(answer.completion_tokens for answer in answers),
        seconds=seconds,
        drafts=moved.drafts,
        draft_tokens=round(moved.tokens_per_draft),
        by_position=tuple(shares),
    )


def _positions(endpoint: Endpoint) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in endpoint.metrics().find(PER_POSITION):
        position = sample.labels["position"]
        found[position] = found.get(position, 0.0) + sample.value
    return found
