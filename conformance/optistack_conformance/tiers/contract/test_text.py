"""The text is the same however it is asked for, and ends where it should."""

from __future__ import annotations

from typing import Any

import pytest

from optistack_conformance.client import CHAT, COMPLETIONS, Client, reasoning_of
from optistack_conformance.engine import EngineInfo
from optistack_conformance.tiers.contract.chats import MESSAGES
from optistack_conformance.tiers.contract.offers import offered

PROMPT = "The quick brown fox"
REQUESTS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": PROMPT},
    CHAT: {"messages": MESSAGES["with-system"]},
}


def text_of(choice: dict[str, Any]) -> str:
    """Of a completion's choice or a chat's."""
    return str(choice.get("text") or (choice.get("message") or {}).get("content") or "")


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


@pytest.mark.parametrize("path", REQUESTS, ids=["completion", "chat"])
def test_stop_ends_the_text(candidate: Client, path: str) -> None:
    """With a stop string the text is the same up to it, and the finish reason is stop."""
    fields = {**REQUESTS[path], "max_tokens": 24, "temperature": 0.0}
    candidate.ask(path, **fields)
    text = text_of(candidate.ask(path, **fields)["choices"][0])
    stop = text[len(text) // 2 :][:4]
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
    body = candidate.ask(COMPLETIONS, prompt=PROMPT, max_tokens=limit, temperature=0.0)
    used, reason = body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]
    assert used <= limit
    expected = "length" if used == limit and reason != "stop" else "stop"
    assert reason == expected, f"{used} of {limit} tokens, finish reason {reason}"


@pytest.mark.parametrize("path", REQUESTS, ids=["completion", "chat"])
def test_n_gives_n_choices(candidate: Client, path: str) -> None:
    """n=3 gives three choices with their own indices, and their tokens are counted together."""
    body = offered(candidate, path, **REQUESTS[path], max_tokens=16, temperature=1.0, n=3, seed=1)
    assert sorted(choice["index"] for choice in body["choices"]) == [0, 1, 2]
    assert 3 <= body["usage"]["completion_tokens"] <= 48
    texts = {text_of(choice) + reasoning_of(choice.get("message") or {}) for choice in body["choices"]}
    assert len(texts) > 1, "three samples at temperature 1 are all the same"


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
