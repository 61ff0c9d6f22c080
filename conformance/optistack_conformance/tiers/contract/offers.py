"""Features that a server may not have: it says so with a 4xx, and the case is skipped."""

from __future__ import annotations

from typing import Any

import pytest

from optistack_conformance.answers import generation
from optistack_conformance.client import Client

NOT_OFFERED = (400, 404, 405, 422, 501)


def offered(client: Client, path: str, **fields: Any) -> dict[str, Any]:
    """The answer to a request that is right by the API; the case is skipped when the server refuses it."""
    response = client.post(path, **fields)
    if response.status_code in NOT_OFFERED:
        pytest.skip(f"the server does not offer this: {response.status_code} {response.text[:160]}")
    return generation(response)


def with_logprobs(client: Client, path: str, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first choice and its log probabilities; skipped when the server gives none."""
    choice = offered(client, path, **fields)["choices"][0]
    logprobs = choice.get("logprobs")
    if not logprobs or not (logprobs.get("tokens") or logprobs.get("content")):
        pytest.skip("the server returns no log probabilities")
    return choice, logprobs
