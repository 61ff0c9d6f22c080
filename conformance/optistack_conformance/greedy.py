"""Greedy answers of an engine, and their tokens scored by the same engine as part of one prefill, for the margin.

Natively on vLLM (``/v1/completions`` with token ids and prompt logprobs) and SGLang (``/generate``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optistack_conformance.answers import NotScoredError, generation, read_from, sglang_answer, sglang_scores
from optistack_conformance.margin import MarginVerdict, ScoredToken, judge

if TYPE_CHECKING:
    from optistack.verify.endpoint import Endpoint

PROMPTS = (
    "def fibonacci(n):\n    ",
    "Write a Python function that returns the largest even number of a list.\n",
    "The three primary colours are",
    "Question: What is the capital of France?\nAnswer:",
    "import json\n\ndef load_settings(path):\n",
    "Once upon a time, in a village by the sea, there lived",
    "A list of the planets, from the sun outwards:\n1.",
    "SELECT name, price FROM products WHERE",
    "Dear Sir or Madam,\n\nI am writing to",
    '{"name": "Ada", "born": 1815, "known_for": [',
)
"""Short prompts of several kinds: code, prose, lists, data."""


@dataclass(frozen=True)
class Generation:
    """A greedy answer as token ids. ``raw`` is the engine's response; ``prompt_ids`` are empty where it does not say
    them, and then nothing can be scored."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    raw: dict[str, Any]


def generate(endpoint: Endpoint, prompt: str, *, max_tokens: int = 32) -> Generation:
    """A greedy answer to ``prompt`` as token ids.

    Raises CheckFailedError when the engine answers with an error, NotScoredError when without token ids.
    """
    with read_from(endpoint.url):
        return (_sglang_generate if _is_sglang(endpoint) else _vllm_generate)(endpoint, prompt, max_tokens)


def prompt_ids(endpoint: Endpoint, prompt: str) -> tuple[int, ...]:
    """``prompt`` as the engine tokenizes it. Raises CheckFailedError and NotScoredError as :func:`generate` does, the
    latter also where SGLang gives no log probabilities."""
    with read_from(endpoint.url):
        if _is_sglang(endpoint):
            return _sglang_prompt_ids(endpoint, prompt)
        return _vllm_generate(endpoint, prompt, 1).prompt_ids


def score(endpoint: Endpoint, generation: Generation, *, sequence: int = 0) -> tuple[ScoredToken, ...]:
    """Every generated token of ``generation``, scored by the same engine as part of one prefill.

    Raises CheckFailedError when the engine answers with an error, NotScoredError when it scores other tokens than it
    was given or none.
    """
    if not generation.output_ids:
        return ()
    if not generation.prompt_ids:
        raise NotScoredError(f"{endpoint.url} gives no log probabilities of a prompt, so its answers cannot be scored.")
    with read_from(endpoint.url):
        pairs = (_sglang_score if _is_sglang(endpoint) else _vllm_score)(endpoint, generation)
    return tuple(
        ScoredToken(sequence, position, emitted, emitted_logprob, best, best_logprob)
        for position, (emitted, (emitted_logprob, best, best_logprob)) in enumerate(
            zip(generation.output_ids, pairs, strict=True)
        )
    )


def check_greedy_margin(
    endpoint: Endpoint, bound_nat: float, *, prompts: Sequence[str] = PROMPTS, max_tokens: int = 32
) -> MarginVerdict:
    """Generate greedily for each of ``prompts``, score what came out, and judge it. Raises as the two do."""
    generations = [generate(endpoint, prompt, max_tokens=max_tokens) for prompt in prompts]
    return judge(
        (token for number, one in enumerate(generations) for token in score(endpoint, one, sequence=number)), bound_nat
    )


Scored = tuple[float, int, float]
"""Log probability of the emitted token, the best token's id, its log probability."""


def _is_sglang(endpoint: Endpoint) -> bool:
    # vLLM serves /version and SGLang does not (vllm 0.26 to 0.33, sglang 0.5.17 to 0.5.23).
    return endpoint.get_json("/version") is None


def _vllm_generate(endpoint: Endpoint, prompt: str, max_tokens: int) -> Generation:
    raw = _vllm_complete(endpoint, prompt, max_tokens=max_tokens, return_token_ids=True)
    choice = raw["choices"][0]
    if not choice.get("prompt_token_ids") or choice.get("token_ids") is None:
        raise NotScoredError(f"{endpoint.url} returns no token ids, so its text cannot be scored.")
    return Generation(tuple(choice["prompt_token_ids"]), tuple(choice["token_ids"]), raw)


def _vllm_complete(endpoint: Endpoint, prompt: str | list[int], **fields: Any) -> dict[str, Any]:
    body = {"model": endpoint.model(), "prompt": prompt, "temperature": 0.0, **fields}
    return generation(endpoint.request("POST", "/v1/completions", json=body))


def _vllm_score(endpoint: Endpoint, generation: Generation) -> list[Scored]:
    ids = [*generation.prompt_ids, *generation.output_ids]
    # Asking for prompt logprobs makes vLLM compute the whole prompt anew instead of reading cached blocks.
    raw = _vllm_complete(endpoint, ids, max_tokens=1, prompt_logprobs=1)
    entries = (raw["choices"][0].get("prompt_logprobs") or [])[len(generation.prompt_ids) :]
    scored: list[Scored] = []
    for token, entry in zip(generation.output_ids, entries, strict=False):
        logprobs = {int(key): float(value["logprob"]) for key, value in (entry or {}).items()}
        if token in logprobs:
            best = max(logprobs, key=lambda key: (logprobs[key], key == token))
            scored.append((logprobs[token], best, logprobs[best]))
    return _all_of(scored, generation, endpoint)


def _sglang_generate(endpoint: Endpoint, prompt: str, max_tokens: int) -> Generation:
    raw = _sglang_post(endpoint, text=prompt, max_new_tokens=max_tokens)
    if raw.get("output_ids") is None:
        raise NotScoredError(f"{endpoint.url} returns no token ids, so its text cannot be scored.")
    try:
        ids = _sglang_prompt_ids(endpoint, prompt)
    except NotScoredError:
        ids = ()
    return Generation(ids, tuple(raw["output_ids"]), raw)


def _sglang_prompt_ids(endpoint: Endpoint, prompt: str) -> tuple[int, ...]:
    """/generate does not echo the prompt's ids by itself, but its logprobs carry them."""
    echoed = _sglang_post(endpoint, text=prompt, max_new_tokens=1, return_logprob=True, logprob_start_len=0)
    ids = tuple(int(entry[1]) for entry in echoed["meta_info"].get("input_token_logprobs") or ())
    if not ids:
        raise NotScoredError(f"{endpoint.url} gives no log probabilities of a prompt: nothing can be scored.")
    return ids


def _sglang_score(endpoint: Endpoint, generation: Generation) -> list[Scored]:
    meta = _sglang_post(
        endpoint,
        input_ids=[*generation.prompt_ids, *generation.output_ids],
        max_new_tokens=1,
        return_logprob=True,
        # From the very first token: SGLang reads from the cache what lies before the start.
        logprob_start_len=0,
        top_logprobs_num=1,
    )["meta_info"]
    emitted = (meta.get("input_token_logprobs") or [])[len(generation.prompt_ids) :]
    top = (meta.get("input_top_logprobs") or [])[len(generation.prompt_ids) :]
    scored: list[Scored] = []
    for token, (logprob, scored_id, *_), best in zip(generation.output_ids, emitted, top, strict=False):
        if scored_id == token and best:
            best_logprob, best_id, *_ = best[0]
            ours_is_best = float(logprob) >= float(best_logprob)
            scored.append((float(logprob), token if ours_is_best else int(best_id), float(best_logprob)))
    return _all_of(scored, generation, endpoint)


def _sglang_post(endpoint: Endpoint, *, max_new_tokens: int, **fields: Any) -> dict[str, Any]:
    body = {"sampling_params": {"temperature": 0.0, "max_new_tokens": max_new_tokens}, **fields}
    read = sglang_scores if fields.get("return_logprob") else sglang_answer
    return read(endpoint.request("POST", "/generate", json=body))


def _all_of(scored: list[Scored], generation: Generation, endpoint: Endpoint) -> list[Scored]:
    if len(scored) != len(generation.output_ids):
        raise NotScoredError(
            f"{endpoint.url} scored {len(scored)} of the {len(generation.output_ids)} tokens that it was given."
        )
    return scored
