"""Needle retrieval: one fact somewhere in a long text, asked for at its end, by length of the text.

Long contexts are where a coarse KV format fails first: FP8 KV without two-level accumulation was seen to fall from 91%
to 13% on such a task while short tasks saw nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from optistack_conformance.evals.items import Item, seeded
from optistack_conformance.evals.words import COLOURS, DAYS, NAMES, PLACES, THINGS, VERBS

TOKENS_A_SENTENCE = 8.4
"""Measured with the tokenizer of SmolLM2: sentences like these have 8.2 tokens on average."""


def items(lengths: Sequence[int], number: int) -> list[Item]:
    """``number`` items for each of ``lengths`` (tokens, about), the needle at depths spread over the text."""
    return [_item(length, index, number) for length in lengths for index in range(1, number + 1)]


def _item(length: int, index: int, number: int) -> Item:
    name = f"needle/{length}/{index:02d}"
    random = seeded(name)
    place, code = random.choice(PLACES), str(random.randint(1000, 9999))
    count = max(2, int((length - 60) / TOKENS_A_SENTENCE))
    sentences = [
        f"On {random.choice(DAYS)} {random.choice(NAMES)} {random.choice(VERBS)} the {random.choice(COLOURS)} "
        f"{random.choice(THINGS)}."
        for _ in range(count)
    ]
    sentences.insert(round((index - 0.5) / number * count), f"The secret code of the {place} is {code}.")
    question = f"Question: What is the secret code of the {place}?\nAnswer: The secret code of the {place} is"
    prompt = f"{' '.join(sentences)}\n\n{question}"
    return Item(name, prompt, f" {code}.", partial(_is_code, code), 8, stop=("\n", "."), context_tokens=length)


def _is_code(code: str, answer: str) -> bool:
    return answer.strip().rstrip(".") == code
