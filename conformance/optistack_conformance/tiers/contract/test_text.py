"""The text is the same however it is asked for, and ends where it should."""

from __future__ import annotations

from typing import Any

import pytest

from optistack_conformance.client import CHAT, COMPLETIONS, Client, Stream, reasoning_of
from optistack_conformance.engine import EngineInfo
from optistack_conformance.outcomes import inconclusive
from optistack_conformance.tiers.contract.chats import MESSAGES
from optistack_conformance.tiers.contract.offers import offered

PROMPT = "The quick brown fox"
SEEDS = (1, 101, 201, 301)
"""Far enough apart for engines that count up from a request's seed."""
MORE = 16
REQUESTS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": PROMPT},
    CHAT: {"messages": MESSAGES["with-system"]},
}


def text_of(choice: dict[str, Any]) -> str:
    """Of a completion's choice or a chat's."""
    return str(choice.get("text") or (choice.get("message") or {}).get("content") or "")


def _check_seen(stream: Stream, text: str) -> None:
    """End the case as inconclusive where ``text`` shows nothing of how streams are put together."""
    if not text.strip():
        inconclusive(f"the model writes nothing that could get lost in a stream: {text!r}")
    if stream.pieces < 2:
        inconclusive("the whole text came in one event, as without a stream")


@pytest.mark.parametrize("prompt", [PROMPT, "def main():\n", "1, 2, 3, 4,"], ids=["words", "code", "numbers"])
def test_completion_streams_the_same_text(candidate: Client, prompt: str) -> None:
    """A streamed completion has the text of one that is not streamed, and ends with one finish reason and [DONE]."""
    fields = {"prompt": prompt, "max_tokens": 32, "temperature": 0.0}
    candidate.ask(COMPLETIONS, **fields)  # both that follow find the same cache
    whole = candidate.ask(COMPLETIONS, **fields)["choices"][0]
    stream = candidate.stream(COMPLETIONS, **fields)
    assert stream.text == whole["text"], f"streamed {stream.text!r}, whole {whole['text']!r}"
    assert stream.finish_reasons == [whole["finish_reason"]]
    assert stream.done, "the stream does not end with [DONE]"
    _check_seen(stream, stream.text)


@pytest.mark.parametrize("messages", MESSAGES.values(), ids=MESSAGES)
def test_chat_streams_the_same_text(candidate: Client, messages: list[dict[str, str]]) -> None:
    """A streamed chat has the text of one that is not streamed; the first delta says who speaks."""
    fields = {"messages": messages, "max_tokens": 32, "temperature": 0.0}
    candidate.ask(CHAT, **fields)
    whole = candidate.ask(CHAT, **fields)["choices"][0]
    stream = candidate.stream(CHAT, **fields)
    content = whole["message"].get("content") or ""
    assert stream.text == content, f"streamed {stream.text!r}, whole {content!r}"
    thought = reasoning_of(whole["message"])
    assert stream.reasoning == thought, f"streamed reasoning {stream.reasoning!r}, whole {thought!r}"
    assert stream.finish_reasons == [whole["finish_reason"]]
    roles = [choice["delta"]["role"] for choice in stream.choices if choice.get("delta", {}).get("role")]
    assert set(roles) == {"assistant"}, f"roles in the deltas: {roles}"
    assert stream.done, "the stream does not end with [DONE]"
    _check_seen(stream, stream.reasoning + stream.text)


@pytest.mark.parametrize("path", REQUESTS, ids=["completion", "chat"])
def test_stop_ends_the_text(candidate: Client, path: str) -> None:
    """With a stop string the text is the same up to it, and the finish reason is stop."""
    fields = {**REQUESTS[path], "max_tokens": 24, "temperature": 0.0}
    candidate.ask(path, **fields)
    whole = candidate.ask(path, **fields)["choices"][0]
    text = text_of(whole)
    stop = text[len(text) // 2 :][:4]
    if stop.strip() and stop in reasoning_of(whole.get("message") or {}):
        pytest.skip(f"{stop!r} is in what the model thinks, too")
    if not stop.strip():
        pytest.skip(f"the model writes nothing to stop at: {text!r}")
    choice = candidate.ask(path, **fields, stop=[stop])["choices"][0]
    expected = text[: text.index(stop)]
    assert text_of(choice) == expected, f"stopped at {stop!r}: {text_of(choice)!r} instead of {expected!r}"
    assert choice["finish_reason"] == "stop"
    stream = candidate.stream(path, **fields, stop=[stop])
    assert stream.text == expected, f"streamed with stop: {stream.text!r} instead of {expected!r}"


@pytest.mark.parametrize("limit", [1, 2, 7, 33])
def test_max_tokens_is_kept(candidate: Client, limit: int) -> None:
    """No more tokens than asked for; exactly so many, with finish reason length, unless the model ended by itself."""
    text, used, reason = _written(candidate, limit)
    assert used <= limit
    what = f"{used} of {limit} tokens, finish reason {reason}"
    if reason == "length":
        assert used == limit, what
        return
    assert reason == "stop", what
    # Who ends by itself does so with more room, too; a text that differs is another one, by rounding.
    longer, more, _ = _written(candidate, limit + MORE)
    cut = more > used and longer.startswith(text.rstrip("\ufffd"))
    assert not cut, f"{what}, but with {MORE} tokens more the text goes on: {text!r}, then {longer!r}"


def _written(candidate: Client, limit: int) -> tuple[str, int, str]:
    """Text, tokens and finish reason of at most ``limit`` tokens after ``PROMPT``."""
    body = candidate.ask(COMPLETIONS, prompt=PROMPT, max_tokens=limit, temperature=0.0)
    return text_of(body["choices"][0]), body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]


@pytest.mark.parametrize("path", REQUESTS, ids=["completion", "chat"])
def test_n_gives_n_choices(candidate: Client, path: str) -> None:
    """n=3 gives three choices with their own indices, and their tokens are counted together."""
    for seed in SEEDS:
        body = offered(candidate, path, **REQUESTS[path], max_tokens=16, temperature=1.0, n=3, seed=seed)
        assert sorted(choice["index"] for choice in body["choices"]) == [0, 1, 2]
        assert 3 <= body["usage"]["completion_tokens"] <= 48
        texts = {text_of(choice) + reasoning_of(choice.get("message") or {}) for choice in body["choices"]}
        # A model that is sure of itself says one thing three times now and then, and not each time.
        if len(texts) > 1:
            return
    pytest.fail(f"{len(SEEDS)} times three samples at temperature 1 are all the same", pytrace=False)


@pytest.mark.parametrize("path", REQUESTS, ids=["completion", "chat"])
def test_seed_repeats_a_sample(candidate: Client, engine: EngineInfo, path: str) -> None:
    """At temperature 1 one seed gives one text, and ten seeds give more than one."""
    if not engine.seeds:
        pytest.skip("the server does not look at seeds (SGLang does with --enable-deterministic-inference)")
    fields = {**REQUESTS[path], "max_tokens": 16, "temperature": 1.0}
    offered(candidate, path, **fields, seed=100)

    def sample(seed: int) -> str:
        choice = candidate.ask(path, **fields, seed=seed)["choices"][0]
        return text_of(choice) + reasoning_of(choice.get("message") or {})

    first, second = sample(7), sample(7)
    assert first == second, f"seed 7 gave {first!r} and {second!r}"
    assert any(sample(seed) != first for seed in range(10)), "ten seeds give one text"
