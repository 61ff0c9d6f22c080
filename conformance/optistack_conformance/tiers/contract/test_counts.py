"""Usage counts and log probabilities say what happened."""

from __future__ import annotations

from typing import Any

import pytest

from optistack_conformance.client import CHAT, COMPLETIONS, Client
from optistack_conformance.reference import Reference
from optistack_conformance.template import ChatTemplate
from optistack_conformance.tiers.contract.chats import MESSAGES


def _prompt_tokens(client: Client, messages: list[dict[str, str]]) -> int:
    body = client.ask(CHAT, messages=messages, max_tokens=1, temperature=0.0)
    return int(body["usage"]["prompt_tokens"])


@pytest.mark.parametrize("name", MESSAGES)
def test_prompt_tokens_are_those_of_the_template(candidate: Client, template: ChatTemplate | None, name: str) -> None:
    """usage.prompt_tokens equals what the checkpoint's own chat template and tokenizer make of the messages."""
    if template is None:
        pytest.skip("no checkpoint was given to count with (--checkpoint DIR)")
    used, expected = _prompt_tokens(candidate, MESSAGES[name]), template.count(MESSAGES[name])
    assert used == expected, f"the server counts {used} prompt tokens, the checkpoint's template makes {expected}"


@pytest.mark.parametrize("name", MESSAGES)
def test_prompt_tokens_are_those_of_the_baseline(candidate: Client, reference: Reference, name: str) -> None:
    """usage.prompt_tokens equals the baseline's for the same messages: both have the same template."""
    used, expected = _prompt_tokens(candidate, MESSAGES[name]), reference.prompt_tokens.get(name)
    if expected is None:
        pytest.skip("the baseline has no count of this one")
    assert used == expected, f"the server counts {used} prompt tokens, the baseline {expected}"


@pytest.mark.parametrize("name", MESSAGES)
def test_prompt_tokens_are_those_of_tokenize(candidate: Client, name: str) -> None:
    """usage.prompt_tokens equals the count of the server's own /tokenize, where it has one for messages."""
    body = {"model": candidate.model(), "messages": MESSAGES[name], "add_generation_prompt": True}
    response = candidate.request("POST", "/tokenize", json=body)
    count = response.json().get("count") if response.status_code == 200 else None
    if count is None:
        pytest.skip("the server has no /tokenize for messages")
    used = _prompt_tokens(candidate, MESSAGES[name])
    assert used == count, f"the usage says {used} prompt tokens, /tokenize {count}"


def test_usage_adds_up(candidate: Client) -> None:
    """total = prompt + completion, and the completion's count is that of its log probabilities."""
    body = candidate.ask(COMPLETIONS, prompt="One, two, three,", max_tokens=12, temperature=0.0, logprobs=1)
    usage, tokens = body["usage"], body["choices"][0]["logprobs"]["tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == len(tokens), f"{usage['completion_tokens']} counted, {len(tokens)} returned"


def test_streamed_usage_is_the_same(candidate: Client) -> None:
    """With include_usage a stream reports the counts of the same request without a stream."""
    fields = {"messages": MESSAGES["with-system"], "max_tokens": 12, "temperature": 0.0}
    candidate.ask(CHAT, **fields)
    whole = candidate.ask(CHAT, **fields)["usage"]
    usage = candidate.stream(CHAT, **fields, stream_options={"include_usage": True}).usage
    assert usage is not None, "the stream has no usage"
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[key] == whole[key], f"{key}: streamed {usage[key]}, whole {whole[key]}"


def test_logprobs_belong_to_the_text(candidate: Client) -> None:
    """Each token of a greedy text has a log probability, none above it, and the tokens make up the text."""
    choice = candidate.ask(COMPLETIONS, prompt="Once upon a time", max_tokens=12, temperature=0.0, logprobs=3)[
        "choices"
    ][0]
    logprobs: dict[str, Any] = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert value <= 1e-6, f"the log probability of {token!r} is {value}"
        assert max(top.values()) <= value + 1e-4, f"greedy took {token!r} at {value}, but there is {top}"


def test_chat_logprobs_are_sorted(candidate: Client) -> None:
    """A chat with top_logprobs lists them from the likeliest down, the emitted one among them."""
    body = candidate.ask(
        CHAT, messages=MESSAGES["one-user-turn"], max_tokens=6, temperature=0.0, logprobs=True, top_logprobs=4
    )
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == body["usage"]["completion_tokens"]
    for entry in content:
        values = [one["logprob"] for one in entry["top_logprobs"]]
        assert len(values) == 4
        assert values == sorted(values, reverse=True)
        assert entry["token"] in [one["token"] for one in entry["top_logprobs"]]
