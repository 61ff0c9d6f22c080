"""Messages, tools and schemas that the contract cases send."""

from __future__ import annotations

from typing import Any

MESSAGES: dict[str, list[dict[str, str]]] = {
    "one-user-turn": [{"role": "user", "content": "Name three rivers."}],
    "with-system": [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    "three-turns": [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": "What is my name?"},
    ],
}
"""What a wrong template counts differently: no system message, one, and an answer in between."""

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "enum": [1, 2, 3, 5, 7]},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
"""Closed on purpose: a small model fills it in few tokens, and any cut or doubled one breaks it."""

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of the next days.",
        "parameters": WEATHER,
        # Without it an engine need not keep to the schema: vLLM 0.32 lets a small model answer with any JSON value.
        "strict": True,
    },
}
TOOL_CHOICE: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}
TOOL_MESSAGES: list[dict[str, str]] = [{"role": "user", "content": "What will the weather in Oslo be for 3 days?"}]

DAYS: dict[str, Any] = {
    "type": "object",
    "properties": {"days": {"type": "integer", "enum": [1, 2, 3, 5, 7]}},
    "required": ["days"],
    "additionalProperties": False,
}
"""A few tokens long: what is asked for many times."""
