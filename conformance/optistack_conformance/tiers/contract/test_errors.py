"""Bad requests are told so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optistack_conformance.client import CHAT, COMPLETIONS, Client
from optistack_conformance.engine import EngineInfo
from optistack_conformance.tiers.contract.offers import offered

if TYPE_CHECKING:
    import httpx

BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "messages-missing": (CHAT, {}),
    "messages-not-a-list": (CHAT, {"messages": 7}),
    "max-tokens-negative": (COMPLETIONS, {"prompt": "x", "max_tokens": -1}),
    "temperature-negative": (COMPLETIONS, {"prompt": "x", "temperature": -1.0}),
    "top-p-above-one": (COMPLETIONS, {"prompt": "x", "top_p": 7.0}),
    "n-zero": (COMPLETIONS, {"prompt": "x", "n": 0}),
}
RIGHT: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "x"},
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
}
"""A server that answers 404 to everything refuses these, too."""


@pytest.mark.parametrize("name", BAD)
def test_bad_request_is_refused(candidate: Client, name: str) -> None:
    """A request that is wrong gets a 4xx with a message, not an answer and not a 500."""
    path, fields = BAD[name]
    offered(candidate, path, **RIGHT[path], max_tokens=1)
    response = candidate.post(path, **fields)
    _check_refused(response)
    assert response.text.strip(), "the refusal has no message"


def test_broken_json_is_refused(candidate: Client) -> None:
    """A body that is no JSON gets a 4xx."""
    offered(candidate, COMPLETIONS, **RIGHT[COMPLETIONS], max_tokens=1)
    headers = {"content-type": "application/json"}
    response = candidate.request("POST", COMPLETIONS, content=b'{"prompt": ', headers=headers)
    _check_refused(response)


def test_unknown_model_is_refused(candidate: Client) -> None:
    """A model that is not served gets a 404 or 400. SGLang answers whatever the name is, by design."""
    offered(candidate, COMPLETIONS, **RIGHT[COMPLETIONS], max_tokens=1)
    response = candidate.request("POST", COMPLETIONS, json={"model": "no-such-model", "prompt": "x", "max_tokens": 1})
    if response.status_code == 200 and candidate.get_json("/version") is None:
        pytest.skip("the server does not look at the model's name")
    _check_refused(response)
    assert response.status_code in (400, 404), f"{response.request.url} answered {response.status_code}, not 404 or 400"


def test_too_long_prompt_is_refused(candidate: Client, engine: EngineInfo) -> None:
    """A prompt beyond the context gets a 4xx, and the server serves on."""
    if engine.max_tokens is None or engine.max_tokens > 200_000:
        pytest.skip("the server does not say how long a prompt may be, or it is too long to try")
    offered(candidate, COMPLETIONS, **RIGHT[COMPLETIONS], max_tokens=1)
    response = candidate.post(COMPLETIONS, prompt="a b " * engine.max_tokens, max_tokens=1)
    _check_refused(response)
    candidate.ask(COMPLETIONS, prompt="x", max_tokens=1)


def _check_refused(response: httpx.Response) -> None:
    what = f"{response.request.url} answered {response.status_code}"
    assert 400 <= response.status_code < 500, f"{what} to a bad request, where a 4xx is due: {response.text[:200]}"
