"""What is said when the address is not an engine's: the next step, by what came back."""

from __future__ import annotations

import httpx
import pytest

from optistack.errors import CheckFailedError
from optistack.verify.endpoint import Endpoint


@pytest.mark.parametrize(
    ("url", "answer", "says", "fix"),
    [
        ("http://engine", httpx.Response(401), "asks for a key", "OPTISTACK_API_KEY"),
        ("http://engine/v1", httpx.Response(404), "status 404", "Give http://engine."),
        ("http://engine", httpx.Response(200, text="<html>"), "lists no model", "the engine's own address"),
        ("http://engine", httpx.Response(200, json={"data": []}), "lists no model", "the engine's own address"),
    ],
)
def test_a_wrong_address_or_key_is_told_with_the_mend(url: str, answer: httpx.Response, says: str, fix: str) -> None:
    with (
        Endpoint(url, transport=httpx.MockTransport(lambda request: answer)) as endpoint,
        pytest.raises(CheckFailedError, match=says) as caught,
    ):
        endpoint.model()
    assert fix in (caught.value.fix or "")
