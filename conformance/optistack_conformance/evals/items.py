"""``Item``, and the whole set at the sizes of a profile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from optistack_conformance.evals import VERSION

if TYPE_CHECKING:
    from optistack_conformance.selection import Profile


@dataclass(frozen=True)
class Item:
    """One task: a completion ``prompt``, and ``check`` on what comes after it.

    ``reference`` is an answer that passes. ``context_tokens`` is the intended length of a long prompt, else 0.
    """

    id: str
    prompt: str
    reference: str
    check: Callable[[str], bool]
    max_tokens: int
    stop: tuple[str, ...] = ("\n",)
    context_tokens: int = 0

    @property
    def suite(self) -> str:
        return self.id.split("/")[0]


def seeded(item_id: str) -> Random:
    """The random numbers of one item: they depend on its id and the version, not on other items."""
    return Random(f"optistack-evals-{VERSION}/{item_id}")


def load_items(profile: Profile, *, longest_tokens: int | None = None) -> list[Item]:
    """The items of ``profile``, suite by suite. ``longest_tokens`` leaves out contexts that the model cannot take."""
    from optistack_conformance.evals import code, copying, needle, structured, tools

    number = profile.items_per_suite
    lengths = [length for length in profile.needle_tokens if longest_tokens is None or length <= longest_tokens - 64]
    return [
        *code.items()[:number],
        *copying.items(number),
        *structured.items(number),
        *tools.items(number),
        *needle.items(lengths, profile.needles),
    ]


def digest(items: Sequence[Item]) -> str:
    """sha256 over ids, prompts and references: two runs with one digest asked the same."""
    text = json.dumps([(item.id, item.prompt, item.reference, item.max_tokens, item.stop) for item in items])
    return hashlib.sha256(text.encode()).hexdigest()
