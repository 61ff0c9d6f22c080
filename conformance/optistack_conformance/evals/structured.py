"""Structured output: a sentence turned into a JSON object with the right keys, types and values."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from optistack_conformance.evals.items import Item, seeded
from optistack_conformance.evals.words import CITIES, COLOURS, NAMES, THINGS

SHOTS = (
    'Text: Ben, 31, lives in Rome.\nJSON: {"name": "Ben", "age": 31, "city": "Rome"}\n\n'
    'Text: Cleo, 58, lives in Lima.\nJSON: {"name": "Cleo", "age": 58, "city": "Lima"}\n\n'
)
ORDERS = (
    'Text: 4 red lamps at 20 each.\nJSON: {"count": 4, "colour": "red", "thing": "lamp", "price": 20}\n\n'
    'Text: 9 blue chairs at 35 each.\nJSON: {"count": 9, "colour": "blue", "thing": "chair", "price": 35}\n\n'
)


def items(number: int) -> list[Item]:
    return [_item(index) for index in range(1, number + 1)]


def _item(index: int) -> Item:
    name = f"structured/{index:03d}"
    random = seeded(name)
    wanted: dict[str, Any]
    if index % 2:
        wanted = {"name": random.choice(NAMES), "age": random.randint(18, 90), "city": random.choice(CITIES)}
        shots, text = SHOTS, f"{wanted['name']}, {wanted['age']}, lives in {wanted['city']}."
    else:
        wanted = {"count": random.randint(2, 30), "colour": random.choice(COLOURS), "thing": random.choice(THINGS)}
        wanted["price"] = random.randint(5, 99)
        shots = ORDERS
        text = f"{wanted['count']} {wanted['colour']} {wanted['thing']}s at {wanted['price']} each."
    reference = " " + json.dumps(wanted)
    return Item(name, f"Write each text as JSON.\n\n{shots}Text: {text}\nJSON:", reference, partial(_equal, wanted), 48)


def _equal(wanted: dict[str, Any], answer: str) -> bool:
    try:
        return bool(json.loads(answer) == wanted)
    except ValueError:
        return False
