"""A chat as it goes on: the messages of a user, and between them the answers that the server gave itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from optistack_bench.client import BAD_EVENT, Answer
from optistack_bench.workload import Turn

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": what,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"} for key in keys},
                "required": list(keys),
            },
        },
    }
    for name, what, keys in (
        ("read_file", "Read a file of the project.", ("path",)),
        ("edit_file", "Replace a text in a file by another one.", ("path", "old", "new")),
        ("run", "Run a shell command in the project, and see what it prints.", ("command",)),
    )
]
"""What a coding agent offers its model, so that the server's parser of tool calls is at work."""


def _message(**fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode()


@dataclass
class Conversation:
    """``known_tokens`` is what the server counted of the last turn, prompt and answer: the head of the next prompt, as
    far as its chat template leaves the past as it was."""

    known_tokens: int = 0
    _messages: list[bytes] = field(default_factory=list)
    _calls: list[str] = field(default_factory=list)
    """Ids of the tool calls that the last answer made, which the next message has to answer."""

    def ask(self, turn: Turn) -> bytes:
        """The messages of the request for ``turn``, a JSON array."""
        return b"[%b]" % b",".join([*self._messages, *self._said(turn)])

    def _said(self, turn: Turn) -> list[bytes]:
        """What is new: the user's message, or as much as the result of the tools that were called."""
        if not self._calls:
            return [_message(role="user", content=turn.text)]
        first, *others = self._calls
        return [
            _message(role="tool", tool_call_id=first, content=turn.text),
            *(_message(role="tool", tool_call_id=call, content="") for call in others),
        ]

    def answered(self, turn: Turn, answer: Answer) -> None:
        """Read ``answer``, and let the next turn follow it. One that failed is left out with what was asked."""
        message = read_answer(answer)
        if answer.error or message is None:
            return
        self._messages += [*self._said(turn), _message(**message)]
        self._calls = [call["id"] for call in message.get("tool_calls", ())]
        usage = answer.usage or {}
        self.known_tokens = int(usage.get("prompt_tokens") or 0) + int(usage.get("completion_tokens") or 0)


def read_answer(answer: Answer) -> dict[str, Any] | None:
    """The message that the events of ``answer`` make, of its first choice, whose chunks are then counted.

    A chunk counts when it has text, thought or a part of a tool call: the first one often has a role alone. Done when
    the stream is over, so that nothing is parsed while it arrives. An event that cannot be read is the answer's error,
    and there is no message.
    """
    texts: list[str] = []
    calls: dict[int, dict[str, str]] = {}
    for at_s, event in answer.events:
        try:
            deltas = [choice["delta"] for choice in json.loads(event)["choices"] if choice.get("index", 0) == 0]
            said = [_read(delta, texts, calls) for delta in deltas]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            if not answer.error:
                answer.error, answer.detail = BAD_EVENT, event[:300].decode(errors="replace").strip()
            return None
        if any(said):
            answer.chunks_s.append(at_s)
    answer.events.clear()
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    made = [call for _, call in sorted(calls.items())]
    if made and all(call["id"] and _is_object(call["arguments"]) for call in made):
        # One that was cut short is no JSON, and a server may refuse a history that has it.
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in made
        ]
    return message


def _read(delta: dict[str, Any], texts: list[str], calls: dict[int, dict[str, str]]) -> bool:
    """Whether ``delta`` says anything; what of it stays in the history is put into ``texts`` and ``calls``.

    Raises TypeError and others for what is no delta of OpenAI's API."""
    text = delta.get("content") or ""
    if not isinstance(text, str):
        raise TypeError(f"content is {type(text).__name__}")
    texts.append(text)
    parts = delta.get("tool_calls") or ()
    for part in parts:
        call = calls.setdefault(int(part.get("index", 0)), {"id": "", "name": "", "arguments": ""})
        function = part.get("function") or {}
        call["id"] = call["id"] or part.get("id") or ""
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""
    # vLLM says `reasoning` since 0.12, others `reasoning_content`.
    return bool(text or parts or delta.get("reasoning_content") or delta.get("reasoning"))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
