"""JSON by schema and tool calls, whole and streamed."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import jsonschema
import pytest

from optistack_conformance.client import CHAT, Client, Stream
from optistack_conformance.outcomes import inconclusive
from optistack_conformance.selection import Selection
from optistack_conformance.tiers.contract.chats import DAYS, TOOL, TOOL_CHOICE, TOOL_MESSAGES, WEATHER
from optistack_conformance.tiers.contract.offers import offered

JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
TOOLS: dict[str, Any] = {"messages": TOOL_MESSAGES, "tools": [TOOL], "max_tokens": 120, "temperature": 0.0}

NO_CALL = "no tool call; is the engine started with the parser of this model's (serving.tool_call_parser)?"


def _offered(client: Client, **fields: Any) -> dict[str, Any]:
    body = offered(client, CHAT, **fields)
    if body["usage"]["completion_tokens"] >= fields["max_tokens"]:
        inconclusive(f"the model filled all {fields['max_tokens']} tokens before the JSON was complete")
    return body


def _assembled(stream: Stream) -> list[tuple[str, str]]:
    """Name and arguments of the tool calls that the deltas make up."""
    calls: dict[int, dict[str, str]] = defaultdict(lambda: {"name": "", "arguments": ""})
    for choice in stream.choices:
        for delta in choice.get("delta", {}).get("tool_calls") or []:
            function = delta.get("function") or {}
            calls[delta["index"]]["name"] += function.get("name") or ""
            calls[delta["index"]]["arguments"] += function.get("arguments") or ""
    return [(calls[index]["name"], calls[index]["arguments"]) for index in sorted(calls)]


def _check_call(name: str, arguments: str) -> None:
    assert name == "get_weather"
    try:
        value = json.loads(arguments)
    except ValueError as error:
        pytest.fail(f"the arguments are no JSON ({error}): {arguments!r}", pytrace=False)
    try:
        jsonschema.validate(value, WEATHER)
    except jsonschema.ValidationError as error:
        pytest.fail(f"the arguments break the schema: {error.message}", pytrace=False)


@pytest.fixture(scope="module")
def named_call(candidate: Client) -> dict[str, Any]:
    """The message that answers a tool asked for by name: three cases look at it, and weak models write it slowly."""
    message: dict[str, Any] = _offered(candidate, **TOOLS, tool_choice=TOOL_CHOICE)["choices"][0]["message"]
    return message


def test_json_schema_is_kept(candidate: Client) -> None:
    """response_format json_schema gives text that parses and is valid."""
    body = _offered(candidate, messages=TOOL_MESSAGES, response_format=JSON_SCHEMA, max_tokens=120, temperature=0.0)
    text = body["choices"][0]["message"]["content"]
    try:
        jsonschema.validate(json.loads(text), WEATHER)
    except (ValueError, jsonschema.ValidationError) as error:
        pytest.fail(f"the answer breaks the schema ({error}): {text!r}", pytrace=False)


def test_named_tool_call(named_call: dict[str, Any]) -> None:
    """A tool that is asked for by name is called, with arguments that parse and are valid."""
    calls = named_call.get("tool_calls") or []
    assert calls, NO_CALL
    assert len(calls) == 1, f"{len(calls)} tool calls"
    assert calls[0]["type"] == "function"
    assert calls[0]["id"]
    _check_call(calls[0]["function"]["name"], calls[0]["function"]["arguments"])


def test_streamed_tool_call_assembles(candidate: Client, named_call: dict[str, Any]) -> None:
    """The deltas of a streamed tool call make up the call that comes without a stream."""
    whole = [(call["function"]["name"], call["function"]["arguments"]) for call in named_call.get("tool_calls") or []]
    streamed = _assembled(candidate.stream(CHAT, **TOOLS, tool_choice=TOOL_CHOICE))
    assert streamed or whole, NO_CALL
    assert len(streamed) == 1, f"{len(streamed)} tool calls in the stream"
    _check_call(*streamed[0])
    # Compared as values: an engine may write the whole call anew from what it parsed, and so with other white space.
    values = [[(name, json.loads(arguments)) for name, arguments in calls] for calls in (streamed, whole)]
    assert values[0] == values[1], f"streamed {streamed}, whole {whole}"


def test_required_tool_call(candidate: Client) -> None:
    """tool_choice required ends in a valid call, and the finish reason says so."""
    choice = _offered(candidate, **TOOLS, tool_choice="required")["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    assert calls, NO_CALL
    _check_call(calls[0]["function"]["name"], calls[0]["function"]["arguments"])
    assert choice["finish_reason"] == "tool_calls"


def test_schema_is_kept_every_time(candidate: Client, selection: Selection) -> None:
    """Many answers by a schema, several at once: not one breaks it (60 answers find a rate of 5% with 95%)."""
    number = selection.sizes.structured_answers
    form = {"type": "json_schema", "json_schema": {"name": "days", "schema": DAYS, "strict": True}}

    def fields(index: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"How long is trip number {index}? Answer in JSON."}]
        return {"messages": messages, "response_format": form, "max_tokens": 48, "temperature": 0.0}

    def ask(index: int) -> str | None:
        """The text; None when it was cut, which breaks nothing."""
        choice = candidate.ask(CHAT, **fields(index))["choices"][0]
        return None if choice["finish_reason"] == "length" else str(choice["message"]["content"])

    offered(candidate, CHAT, **fields(0))  # one that offers it once and refuses it among others is at fault
    found = candidate.parallel(ask, range(1, number + 1), selection.concurrency)
    texts = [text for text in found if text is not None]
    broken = [text for text in texts if not _is_days(text)]
    assert not broken, f"{len(broken)} of {len(texts)} answers break the schema, the first: {broken[0]!r}"
    if len(texts) < number / 2:
        inconclusive(f"the model filled its tokens before the JSON was complete in {number - len(texts)} of {number}")


def test_tool_call_ids_are_new(candidate: Client, named_call: dict[str, Any]) -> None:
    """The next tool call of a conversation has an id that the conversation does not have yet: results go by it."""
    first = named_call.get("tool_calls") or []
    assert first, NO_CALL
    result = {"role": "tool", "tool_call_id": first[0]["id"], "content": '{"temperature": 4}'}
    said = {"role": "assistant", "content": None, "tool_calls": first}
    messages = [*TOOL_MESSAGES, said, result, {"role": "user", "content": "And in Rome?"}]
    fields = {**TOOLS, "messages": messages}
    again = _offered(candidate, **fields, tool_choice=TOOL_CHOICE)["choices"][0]["message"]["tool_calls"]
    ids = [call["id"] for call in (*first, *again)]
    assert len(set(ids)) == len(ids), f"ids of one conversation: {ids}"


def _is_days(text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), DAYS)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True
