"""Token ids of prompts that grow: of a session's next turn only what is new is tokenized and hashed.

A prompt may be cut before a token that a tokenizer splits off first and leaves alone (``<|im_start|>``): the ids of the
two parts are then the ids of the whole. What comes before the last such cut is kept for the session's next turn.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from optistack_routing.kv_index.index import chain
from optistack_routing.kv_index.prompt import Prompt, Text

MAX_BYTES = 512 << 20
"""Of all sessions together: one of 100k tokens takes about 0.9 MB."""

_CUTS = 64
"""Newest cuts that are kept of a session, for histories that are edited near their end."""
_TAIL_CHARACTERS = 1 << 16
"""How far from the end of a prompt a cut is looked for."""


@dataclass(frozen=True)
class Tokens:
    """A prompt's length and the keys of its whole pages."""

    count: int
    keys: Sequence[int]


@dataclass(slots=True)
class _Known:
    """The text before a session's last cut, its ids, the keys of their pages, and all cuts: (characters, ids)."""

    text: str
    ids: array[int]
    keys: array[int]
    cuts: list[tuple[int, int]]

    @property
    def size_bytes(self) -> int:
        return len(self.text) + len(self.ids) * self.ids.itemsize + len(self.keys) * self.keys.itemsize


class SessionTokens:
    """Not safe to use from several threads. The least recent sessions are forgotten beyond ``max_bytes``."""

    def __init__(
        self, tokenizer: Tokenizer, page_tokens: int, marks: tuple[str, ...] = (), *, max_bytes: int = MAX_BYTES
    ) -> None:
        self._tokenizer, self._page_tokens, self._marks, self._max_bytes = tokenizer, page_tokens, marks, max_bytes
        self._sessions: OrderedDict[str, _Known] = OrderedDict()
        self._bytes = 0
        self.tokenized_characters = 0

    def of(self, prompt: Prompt, session: str | None = None) -> Tokens:
        """The tokens of ``prompt``, with what is known of ``session`` where it names one."""
        if not isinstance(prompt, Text):
            return self._tokens(array("I", prompt), array("q"))
        if session is None or prompt.special:
            return self._tokens(self._encode(prompt.text, special=prompt.special), array("q"))
        known = self._forget(session)
        known = _common(known, prompt.text, self._page_tokens) if known else _Known("", array("I"), array("q"), [])
        cut = self._last_cut(prompt.text, len(known.text))
        if cut > len(known.text):
            known.ids.extend(self._encode(prompt.text[len(known.text) : cut]))
            known.text = prompt.text[:cut]
            known.cuts = [*known.cuts[1 - _CUTS :], (cut, len(known.ids))]
            known.keys = chain(known.ids, self._page_tokens, known.keys)
        self._remember(session, known)
        return self._tokens(known.ids + self._encode(prompt.text[len(known.text) :]), known.keys)

    def _tokens(self, ids: array[int], keys: array[int]) -> Tokens:
        return Tokens(len(ids), chain(ids, self._page_tokens, keys))

    def _encode(self, text: str, *, special: bool = False) -> array[int]:
        self.tokenized_characters += len(text)
        return array("I", self._tokenizer.encode(text, add_special_tokens=special).ids)

    def _last_cut(self, text: str, least: int) -> int:
        start = max(least, len(text) - _TAIL_CHARACTERS)
        return max((text.rfind(mark, start) for mark in self._marks), default=-1)

    def _remember(self, session: str, known: _Known) -> None:
        self._sessions[session] = known
        self._bytes += known.size_bytes
        while self._bytes > self._max_bytes and self._sessions:
            self._bytes -= self._sessions.popitem(last=False)[1].size_bytes

    def _forget(self, session: str) -> _Known | None:
        known = self._sessions.pop(session, None)
        if known is not None:
            self._bytes -= known.size_bytes
        return known


def _common(known: _Known, text: str, page_tokens: int) -> _Known:
    """What of ``known`` holds for ``text``: all that comes before the last cut at which both are still the same."""
    if text.startswith(known.text):
        return known
    same, differ = 0, len(known.text)
    while differ - same > 1:
        middle = (same + differ) // 2
        if text[:middle] == known.text[:middle]:
            same = middle
        else:
            differ = middle
    cuts = [cut for cut in known.cuts if cut[0] <= same]
    characters, ids = cuts[-1] if cuts else (0, 0)
    return _Known(known.text[:characters], known.ids[:ids], known.keys[: ids // page_tokens], cuts)
