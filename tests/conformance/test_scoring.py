"""What the engine says of tokens, read without a leaning."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest

from optistack_conformance.answers import NotScoredError
from optistack_conformance.cases import branches
from optistack_conformance.client import Client
from optistack_conformance.scoring import Position, Scorer, as_scored
from optistack_conformance.statistics.sampling import judge_sampling

TIED = {1: -0.5, 2: -0.5, 3: -3.0, 4: -3.0, 5: -3.0}
"""Token ids and log probabilities; engines in BF16 have many that are equal."""


def vllm(request: httpx.Request) -> httpx.Response:
    """vLLM's prompt log probabilities: the emitted token first, then the likeliest in an order of their own."""
    if request.url.path == "/v1/models":
        return httpx.Response(200, json={"data": [{"id": "m"}]})
    asked = json.loads(request.content)
    entries = []
    for token in asked["prompt"]:
        best = [(one, rank) for rank, one in enumerate((2, 1, 4, 3, 5), 1)][: asked["prompt_logprobs"]]
        above = sum(value >= TIED[token] for value in TIED.values())
        ranks = {token: above} | dict(best)
        entries.append({str(one): {"logprob": TIED[one], "rank": rank} for one, rank in ranks.items()})
    return httpx.Response(200, json={"choices": [{"text": "", "prompt_logprobs": entries}]})


def test_the_order_of_equally_likely_tokens_does_not_depend_on_the_emitted_one() -> None:
    with Client("http://engine", transport=httpx.MockTransport(vllm)) as client:
        positions = Scorer(client, "vllm").prefill([], list(TIED), top=4)
    assert [position.token for position in positions] == list(TIED)
    assert {tuple(token for token, _ in position.top) for position in positions} == {(2, 1, 4, 3)}


def test_a_greedy_token_that_is_as_likely_as_the_likeliest_is_the_best() -> None:
    (token,) = as_scored([Position(1, -0.5, ((2, -0.5),))], 0)
    assert (token.best, token.margin_nat) == (1, 0.0)


def sglang_under_dflash(request: httpx.Request) -> httpx.Response:
    """SGLang 0.5.17 under DFLASH: it answers, and refuses whoever asks for log probabilities."""
    if request.url.path != "/generate":
        return httpx.Response(404)
    if json.loads(request.content).get("return_logprob"):
        return httpx.Response(400, json={"error": {"message": "DFLASH does not support return_logprob yet."}})
    return httpx.Response(200, json={"output_ids": [1], "text": " a", "model_path": "m", "meta_info": {}})


def test_an_engine_that_refuses_log_probabilities_is_not_asked_for_ever() -> None:
    client = Client("http://engine", transport=httpx.MockTransport(sglang_under_dflash))
    with client, pytest.raises(NotScoredError, match="nothing can be scored"):
        branches(Scorer(client, "sglang"), number=2, page_tokens=16, seed="0")


@pytest.mark.parametrize(("leaning", "passes"), [(False, True), (True, False)])
def test_ties_that_lean_to_the_emitted_token_would_fail_a_healthy_engine(leaning: bool, passes: bool) -> None:
    random = np.random.default_rng(0)
    top = np.zeros((5_000, 20))
    top[:, :3] = (0.45, 0.45, 0.1)
    ranks = random.choice([1, 2, 3], 5_000, p=top[0, :3])
    if leaning:
        ranks = np.where(ranks == 2, np.where(random.random(5_000) < 0.1, 1, 2), ranks)
    assert judge_sampling(ranks, top).passed is passes
