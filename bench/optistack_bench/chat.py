"""Workloads as chats: the shapes of ``synthetic``, with messages of real text instead of token ids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from optistack_bench.synthetic import FIXED, session_shape
from optistack_bench.tokens import Piece
from optistack_bench.workload import Session, Turn, Workload, with_reuse

MESSAGE_TOKENS = 16
"""What a chat template adds to a message, roles and ends of turns, at most, as far as its length is foreseen."""
TEMPLATE_TOKENS = 128
"""Cached tokens of a first prompt that may be the template's own beginning, and are no sign of an earlier run."""

TASKS = {
    "code": (
        "Explain what this code does, function by function, and quote the lines that you speak of.",
        "Write unit tests for the functions above, as one Python file.",
        "Rewrite the longest function so that it is easier to read, and give the whole of it.",
        "Find a mistake or a weak place in this code, and give the corrected function.",
    ),
    "prose": (
        "Summarize this for somebody who is new to it.",
        "Write an example for each point that is made here.",
        "Say what is missing in this text, and write it.",
    ),
}
"""What is asked for at the end of a message, in turn: answers of the kind that the domain's name promises."""


@dataclass(frozen=True)
class ChatTexts:
    """Text by domain. ``characters_a_token`` is the served model's, so low that lengths are not foreseen too short."""

    corpora: Mapping[str, str]
    characters_a_token: float

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.corpora)

    def piece(self, text: str) -> Piece:
        """A message; its tokens are foreseen, not counted."""
        return Piece(text.encode(), math.ceil(len(text) / self.characters_a_token) + MESSAGE_TOKENS)


@dataclass
class _Reader:
    """Reads a domain's text on, from a place that its name decides, and from the front when it is at the end."""

    name: str
    domain: str
    texts: ChatTexts
    seed: int

    def __post_init__(self) -> None:
        self._corpus = self.texts.corpora[self.domain]
        self._at = Random(f"{self.seed} {self.name}").randrange(len(self._corpus))

    def more(self, tokens: int) -> str:
        left = int(tokens * self.texts.characters_a_token)
        parts = []
        while left > 0:
            part = self._corpus[self._at : self._at + left]
            self._at = (self._at + len(part)) % len(self._corpus)
            left -= len(part)
            parts.append(part)
        return "".join(parts)


def chat_workload(
    name: str,
    *,
    number: int,
    turns: int | None,
    divide: int,
    think_limit_s: float,
    seed: int,
    salt: int,
    texts: ChatTexts,
    tools: bool,
) -> Workload:
    """The workload called ``name`` of ``number`` sessions. With another ``salt`` every text begins otherwise.

    Turn after turn holds a user's text only; what the server answers stands between them when it is played.
    """
    shared_tokens, own_tokens, output_tokens = FIXED.get(name, (0, 0, 0))
    shared = {
        domain: f"# shared {domain}, run {salt}\n" + _Reader(f"shared-{domain}", domain, texts, seed).more(tokens)
        for domain in texts.domains
        if (tokens := -(-shared_tokens // divide))
    }
    random = Random(seed)
    built = []
    for at in range(number):
        domain = texts.domains[at % len(texts.domains)]
        if name in FIXED:
            shape = [(own_tokens, output_tokens, 0.0)]
        else:
            shape = list(session_shape(random, turns, think_limit_s))
        built.append(_session(f"session-{at}", domain, shape, shared.get(domain, ""), divide, seed, salt, texts))
    rules = [
        f"Messages to /v1/chat/completions{', with tools to call' if tools else ''}, with seed {seed}. Between them "
        "stand the answers that this engine gave: two runs have the same messages of the user, not the same tokens.",
        f"Lengths are foreseen at {texts.characters_a_token:.2f} characters a token; figures go by the server's usage.",
        "An answer ends where the model ends it, and at the length of the workload at most.",
    ]
    if name not in FIXED:
        rules.append(f"Pauses are cut to {think_limit_s:g} s.")
    if divide > 1:
        rules.append(f"Every count of tokens, in and out, is divided by {divide}.")
    return Workload(f"{name}, chat{' with tools' if tools else ''}", with_reuse(built), tuple(rules))


def _session(
    name: str,
    domain: str,
    shape: Sequence[tuple[int, int, float]],
    shared: str,
    divide: int,
    seed: int,
    salt: int,
    texts: ChatTexts,
) -> Session:
    """``shape`` has for each turn the tokens that are new, those of the answer, and the pause before it."""
    reader = _Reader(name, domain, texts, seed)
    pieces: tuple[Piece, ...] = (texts.piece(shared),) if shared else ()
    turns = []
    for number, (new, output, think_s) in enumerate(shape):
        task = TASKS[domain][number % len(TASKS[domain])]
        tokens = -(-new // divide) - texts.piece(task).tokens
        head = "" if number else f"# {name}, run {salt}\n"
        text = f"{head}{reader.more(tokens)}\n\n{task}"
        pieces += (texts.piece(text),)
        turns.append(Turn(pieces, -(-output // divide), think_s, text=text if number else shared + text))
        # The answer stands here when the next turn is asked for: its length at most.
        pieces += (Piece(f"answer {number} of {name}".encode(), -(-output // divide)),)
    return Session(name, domain, tuple(turns))
