"""Prompts as token ids that are made up: equal names mean equal tokens, different names different ones.

Prompts travel as ids, since text that is put together from pieces is tokenized otherwise at the seams, and then two
prompts that begin alike need not have the same first tokens.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from random import Random

from optistack.errors import InputError

FIRST_ID = 1_000
LAST_ID = 30_000
"""Ids from FIRST_ID up to LAST_ID are used: plain words in every vocabulary of 32,000 and more, whose special tokens
lie at its ends (SmolLM2: 0 to 16; Llama 3: 128,000 and on; Kimi K2: 163,584 and on)."""
IDS = LAST_ID - FIRST_ID


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of token ids, as they stand in a request's JSON: ``b"1712,2044"``. Pieces are compared by their ids."""

    ids: bytes
    tokens: int


def piece_of(ids: list[int]) -> Piece:
    return Piece(",".join(map(str, ids)).encode(), len(ids))


@dataclass
class TokenMaker:
    """Makes a piece for each name that it is asked for, and the same one when it is asked again.

    A name's number, counted from ``salt`` times MAX_NAMES, is written in the first tokens of its piece, so that no two
    pieces of two tokens or more begin alike; the others are drawn with that number as the seed.
    """

    salt: int = 0
    _pieces: dict[tuple[Hashable, int], Piece] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def piece(self, name: Hashable, tokens: int) -> Piece:
        """``tokens`` (at least 1) token ids called ``name``. A shorter piece of a name is the head of a longer one.

        Raises InputError when there are more names than two tokens can tell apart.
        """
        found = self._pieces.get((name, tokens))
        if found is None:
            found = self._pieces[name, tokens] = piece_of(self._ids(name, tokens))
        return found

    def _ids(self, name: Hashable, tokens: int) -> list[int]:
        number = self._numbers.setdefault(name, len(self._numbers))
        if number >= MAX_NAMES or self.salt >= SALTS:
            raise InputError(
                f"A run takes at most {MAX_NAMES:,} different blocks and {SALTS} repeats.",
                fix="Take fewer sessions, or a smaller --min-seconds.",
            )
        number += self.salt * MAX_NAMES
        high, low = divmod(number, IDS)
        drawn = Random(number).choices(range(FIRST_ID, LAST_ID), k=tokens - 2) if tokens > 2 else []
        return [FIRST_ID + low, FIRST_ID + high, *drawn][:tokens]


class Sizes(TokenMaker):
    """Makes pieces without tokens in them, for asking how long a workload would be."""

    def piece(self, name: Hashable, tokens: int) -> Piece:
        return Piece(b"", tokens)


MAX_NAMES = 4_000_000
SALTS = 200
"""MAX_NAMES * SALTS is less than IDS squared: two tokens tell every name of every salt from the others."""
