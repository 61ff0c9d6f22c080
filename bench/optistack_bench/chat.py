"""Workloads as chats: the shapes of ``synthetic``, with messages of real text instead of token ids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from optistack_bench.synthetic import FIXED, session_shape
from optistack_bench.tokens import Piece
from optistack_bench.workload import Session, Turn, Workload, with_reuse

WINDOW_CHARACTERS = 8_000
MESSAGE_TOKENS = 48
"""What stands in a message beside its text, at most: a head, what is asked for, the template's roles and ends."""
UNKNOWN_CHARACTERS = 2.5
"""A token of a server that does not tokenize for us: code takes 3 to 4 in the vocabularies of today."""
CAUTION = 1.05
"""Lengths are foreseen longer than counted: places within a window differ, too."""
TEMPLATE_TOKENS = 128
"""Cached tokens of a first prompt that may be the template's own beginning, and are no sign of an earlier run."""
TOOLS_TOKENS = 512
"""What the tools take that are offered, where the template writes them out, at most: they stand before all messages."""

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
class Measured:
    """A text, and how many tokens of the served model each piece of ``WINDOW_CHARACTERS`` of it has: code is denser in
    some places than in others."""

    text: str
    window_tokens: tuple[float, ...]

    def tokens_a_character(self, at: int) -> float:
        """Around the character ``at``."""
        window = at // WINDOW_CHARACTERS
        return self.window_tokens[window] / min(WINDOW_CHARACTERS, len(self.text) - window * WINDOW_CHARACTERS)


@dataclass(frozen=True)
class ChatTexts:
    """Text by domain; ``counted`` says whether the served model's tokens were, or were guessed."""

    corpora: Mapping[str, Measured]
    counted: bool = True

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.corpora)


@dataclass
class _Reader:
    """Reads a domain's text on, from a place that its name decides, and from the front when it is at the end."""

    name: str
    corpus: Measured
    seed: int

    def __post_init__(self) -> None:
        self._at = Random(f"{self.seed} {self.name}").randrange(len(self.corpus.text))

    def more(self, tokens: float) -> str:
        """About ``tokens`` of it."""
        parts = []
        while tokens > 0:
            rate = self.corpus.tokens_a_character(self._at)
            room = WINDOW_CHARACTERS - self._at % WINDOW_CHARACTERS
            part = self.corpus.text[self._at : self._at + min(room, math.ceil(tokens / rate))]
            self._at = (self._at + len(part)) % len(self.corpus.text)
            tokens -= len(part) * rate
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
        domain: f"# shared {domain}, run {salt}\n"
        + _Reader(f"shared-{domain}", corpus, seed).more(shared_tokens / divide)
        for domain, corpus in texts.corpora.items()
        if shared_tokens
    }
    random = Random(seed)
    built = []
    for at in range(number):
        domain = texts.domains[at % len(texts.domains)]
        if name in FIXED:
            shape = [(own_tokens, output_tokens, 0.0)]
        else:
            shape = list(session_shape(random, turns, think_limit_s))
        reader = _Reader(f"session-{at}", texts.corpora[domain], seed)
        head = shared_tokens // divide, shared.get(domain, "")
        built.append(_session(reader, domain, shape, head, divide, salt, TOOLS_TOKENS if tools else 0))
    rules = [
        f"Messages to /v1/chat/completions{', with tools to call' if tools else ''}, with seed {seed}. Between them "
        "stand the answers that this engine gave: two runs have the same messages of the user, not the same tokens.",
        "Lengths are foreseen from the tokens of the text"
        + ("" if texts.counted else f" at {UNKNOWN_CHARACTERS} characters each, since the server does not tokenize")
        + "; figures go by the server's usage.",
        "An answer ends where the model ends it, and at the length of the workload at most.",
    ]
    if name not in FIXED:
        rules.append(f"Pauses are cut to {think_limit_s:g} s.")
    if divide > 1:
        rules.append(f"Every count of tokens, in and out, is divided by {divide}.")
    return Workload(f"{name}, chat{' with tools' if tools else ''}", with_reuse(built), tuple(rules))


def _session(
    reader: _Reader,
    domain: str,
    shape: Sequence[tuple[int, int, float]],
    shared: tuple[int, str],
    divide: int,
    salt: int,
    before_tokens: int,
) -> Session:
    """``shape`` has for each turn the tokens that are new, those of the answer, and the pause before it; ``shared`` the
    tokens that all sessions begin with, and their text; ``before_tokens`` stand before the messages."""
    pieces: tuple[Piece, ...] = (_piece(shared[1], shared[0]),) if shared[1] else ()
    pieces = (*([Piece(b"tools", before_tokens)] if before_tokens else []), *pieces)
    turns = []
    for number, (new, output, think_s) in enumerate(shape):
        task = TASKS[domain][number % len(TASKS[domain])]
        # In every turn: one that follows a failure has nothing before it that would tell this run from another.
        text = f"# {reader.name}, run {salt}\n{reader.more(new / divide)}\n\n{task}"
        pieces += (_piece(text, new / divide + MESSAGE_TOKENS),)
        turns.append(Turn(pieces, -(-output // divide), think_s, text=text if number else shared[1] + text))
        # The answer stands here when the next turn is asked for: its length at most.
        pieces += (Piece(f"answer {number} of {reader.name}".encode(), -(-output // divide)),)
    return Session(reader.name, domain, tuple(turns))


def _piece(text: str, tokens: float) -> Piece:
    return Piece(text.encode(), math.ceil(CAUTION * tokens))
