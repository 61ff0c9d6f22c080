"""Usage counts and log probabilities say what happened."""

from __future__ import annotations

from typing import Any

import pytest

from optistack_conformance.answers import json_object, prompt_tokens
from optistack_conformance.client import CHAT, COMPLETIONS, Client, reasoning_of
from optistack_conformance.outcomes import inconclusive
from optistack_conformance.reference import Reference
from optistack_conformance.template import ChatTemplate
from optistack_conformance.tiers.contract.chats import MESSAGES
from optistack_conformance.tiers.contract.offers import offered, with_logprobs

REQUESTS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "One, two, three,"},
    CHAT: {"messages": MESSAGES["with-system"]},
}


def _prompt_tokens(client: Client, messages: list[dict[str, str]]) -> int:
    body = client.ask(CHAT, messages=messages, max_tokens=1, temperature=0.0)
    return prompt_tokens(body, client.url)


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
    if response.status_code != 200:
        pytest.skip("the server has no /tokenize for messages")
    count = json_object(response).get("count")
    if count is None:
        pytest.skip("the server's /tokenize counts no messages")
    used = _prompt_tokens(candidate, MESSAGES[name])
    assert used == count, f"the usage says {used} prompt tokens, /tokenize {count}"


def test_usage_adds_up(candidate: Client) -> None:
    """total = prompt + completion, and a text cut at max_tokens has just so many."""
    body = candidate.ask(COMPLETIONS, prompt="One, two, three,", max_tokens=12, temperature=0.0)
    usage, reason = body["usage"], body["choices"][0]["finish_reason"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    if reason != "length":
        inconclusive("the model ended by itself, so that nobody but the server knows how many tokens it wrote")
    assert usage["completion_tokens"] == 12, f"cut at 12 tokens, {usage['completion_tokens']} counted"


@pytest.mark.parametrize("path", REQUESTS, ids=["completion", "chat"])
def test_streamed_usage_is_the_same(candidate: Client, path: str) -> None:
    """With include_usage a stream reports the counts of the same request without a stream."""
    fields = {**REQUESTS[path], "max_tokens": 12, "temperature": 0.0}
    candidate.ask(path, **fields)
    whole = candidate.ask(path, **fields)["usage"]
    usage = candidate.stream(path, **fields, stream_options={"include_usage": True}).usage
    assert usage is not None, "the stream has no usage"
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[key] == whole[key], f"{key}: streamed {usage[key]}, whole {whole[key]}"


def test_logprobs_belong_to_the_text(candidate: Client) -> None:
    """Each token of a greedy text has a log probability, none above it, and the tokens make up the text."""
    fields = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.0, "logprobs": 3}
    choice, logprobs = with_logprobs(candidate, COMPLETIONS, **fields)
    _make_up("".join(logprobs["tokens"]), choice["text"], choice["finish_reason"])
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert value <= 1e-6, f"the log probability of {token!r} is {value}"
        assert max(top.values()) <= value + 1e-4, f"greedy took {token!r} at {value}, but there is {top}"
        assert token in top, f"greedy took {token!r}, and the likeliest are {top}"
        assert abs(top[token] - value) < 1e-3, f"{token!r} has {value}, and {top[token]} among the likeliest"


def test_logprobs_count_the_tokens(candidate: Client) -> None:
    """There are as many log probabilities as the usage counts tokens."""
    body = offered(candidate, COMPLETIONS, prompt="One, two, three,", max_tokens=12, temperature=0.0, logprobs=1)
    logprobs, used = body["choices"][0].get("logprobs"), body["usage"]["completion_tokens"]
    if not logprobs:
        pytest.skip("the server returns no log probabilities")
    assert len(logprobs["tokens"]) == used, f"{used} tokens counted, {len(logprobs['tokens'])} returned"


def test_chat_logprobs_belong_to_the_text(candidate: Client) -> None:
    """A greedy chat's log probabilities: sorted, the emitted token the likeliest, and the tokens make up the text."""
    fields = {"messages": MESSAGES["one-user-turn"], "max_tokens": 6, "temperature": 0.0}
    choice, logprobs = with_logprobs(candidate, CHAT, **fields, logprobs=True, top_logprobs=4)
    for entry in logprobs["content"]:
        values = [one["logprob"] for one in entry["top_logprobs"]]
        assert len(values) == 4
        assert values == sorted(values, reverse=True)
        same = [one["logprob"] for one in entry["top_logprobs"] if one["token"] == entry["token"]]
        assert same, f"{entry['token']!r} is not among the likeliest"
        assert min(abs(value - entry["logprob"]) for value in same) < 1e-3, f"two values for {entry['token']!r}"
        assert values[0] <= entry["logprob"] + 1e-4, f"greedy took {entry['token']!r}, which is not the likeliest"
    if not reasoning_of(choice["message"]):
        pieces = [bytes(one["bytes"]) if one.get("bytes") else one["token"].encode() for one in logprobs["content"]]
        text = b"".join(pieces).decode(errors="replace")
        _make_up(text, choice["message"].get("content") or "", choice["finish_reason"])


def _make_up(tokens: str, text: str, reason: str) -> None:
    """A text that ended by itself may have a last token that is not part of it."""
    if reason == "length":
        assert tokens.strip("\ufffd") == text.strip("\ufffd"), f"the tokens make {tokens!r}, the text is {text!r}"
    else:
        assert tokens.startswith(text), f"the tokens make {tokens!r}, the text is {text!r}"
