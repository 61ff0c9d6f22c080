"""Copying: a line of random words and numbers, to be repeated. The first thing that damaged KV breaks."""

from __future__ import annotations

from functools import partial

from optistack_conformance.evals.items import Item, seeded
from optistack_conformance.evals.words import CITIES, COLOURS, NAMES, THINGS

WORDS = (*NAMES, *CITIES, *COLOURS, *THINGS)
SHOTS = "".join(f"Line: {line}\nCopy: {line}\n\n" for line in ("red 17 Oslo lamp 4", "Kim 90 chair blue Rome"))


def items(number: int) -> list[Item]:
    return [_item(index) for index in range(1, number + 1)]


def _item(index: int) -> Item:
    name = f"copying/{index:03d}"
    random = seeded(name)
    words = [
        str(random.randint(10, 99)) if random.random() < 0.3 else random.choice(WORDS) for _ in range(4 + index % 6)
    ]
    line = " ".join(words)
    return Item(name, f"Copy each line.\n\n{SHOTS}Line: {line}\nCopy:", f" {line}", partial(_same, line), 40)


def _same(line: str, answer: str) -> bool:
    return answer.strip() == line
