"""Tool calling: the right tool of three, with arguments that are right and valid against its schema."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from optistack_conformance.evals.items import Item, seeded
from optistack_conformance.evals.words import CITIES, DAYS, NAMES

SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "day": {"enum": list(DAYS)}},
        "required": ["city", "day"],
        "additionalProperties": False,
    },
    "send_money": {
        "type": "object",
        "properties": {"to": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}},
        "required": ["to", "amount"],
        "additionalProperties": False,
    },
    "set_alarm": {
        "type": "object",
        "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}, "day": {"enum": list(DAYS)}},
        "required": ["hour", "day"],
        "additionalProperties": False,
    },
}
HEAD = """Answer every request with one tool call.
Tools: get_weather(city, day), send_money(to, amount), set_alarm(hour, day)

Request: What is the weather in Bern on Friday?
Call: {"name": "get_weather", "arguments": {"city": "Bern", "day": "Friday"}}

Request: Send 25 to Lea.
Call: {"name": "send_money", "arguments": {"to": "Lea", "amount": 25}}

Request: Set an alarm on Sunday at 9.
Call: {"name": "set_alarm", "arguments": {"hour": 9, "day": "Sunday"}}

"""


def items(number: int) -> list[Item]:
    return [_item(index) for index in range(1, number + 1)]


def _item(index: int) -> Item:
    name = f"tools/{index:03d}"
    random = seeded(name)
    tool = list(SCHEMAS)[index % len(SCHEMAS)]
    arguments: dict[str, Any]
    if tool == "get_weather":
        arguments = {"city": random.choice(CITIES), "day": random.choice(DAYS)}
        request = f"What is the weather in {arguments['city']} on {arguments['day']}?"
    elif tool == "send_money":
        arguments = {"to": random.choice(NAMES), "amount": random.randint(2, 400)}
        request = f"Send {arguments['amount']} to {arguments['to']}."
    else:
        arguments = {"hour": random.randint(0, 23), "day": random.choice(DAYS)}
        request = f"Set an alarm on {arguments['day']} at {arguments['hour']}."
    call = {"name": tool, "arguments": arguments}
    return Item(name, f"{HEAD}Request: {request}\nCall:", " " + json.dumps(call), partial(_is_call, call), 56)


def _is_call(wanted: dict[str, Any], answer: str) -> bool:
    import jsonschema

    try:
        call = json.loads(answer)
        jsonschema.validate(call["arguments"], SCHEMAS[call["name"]])
    except (ValueError, KeyError, TypeError, jsonschema.ValidationError):
        return False
    return bool(call == wanted)
