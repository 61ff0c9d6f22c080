"""Workloads that are made up: coding sessions of the 200:1 shape, and two fixed shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from optistack_bench.tokens import Piece, TokenMaker, piece_of
from optistack_bench.workload import Session, Turn, Workload, with_reuse

MADE = "made"
HEAD_TOKENS = 8
"""Tokens of its own with which every session begins, so that no two share a cache by chance."""

FIRST_PROMPT_TOKENS = 90_000
GROWTH_TOKENS = 2_400
OUTPUT_TOKENS = 500
SESSION_TURNS = 8
MEAN_THINK_S = 10.0
"""Prompts of about 100k tokens that grow by what the agent answers and what its tools say, answers of 500: 200 to 1.
The median pause in the recorded sessions of callanjfox/kv-cache-tester is 10 s."""

Corpus = Sequence[int]


@dataclass(frozen=True)
class Texts:
    """Token ids of real text by domain; where there are none, prompts are made of random words."""

    corpora: Mapping[str, Corpus]

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.corpora) or (MADE,)


@dataclass
class Writer:
    """Writes one session's text: every call continues it, so that each prompt is the head of the next."""

    name: str
    domain: str
    texts: Texts
    maker: TokenMaker
    seed: int
    pieces: tuple[Piece, ...] = ()

    def __post_init__(self) -> None:
        corpus = self.texts.corpora.get(self.domain)
        self._at = Random(f"{self.seed} {self.name}").randrange(len(corpus)) if corpus else 0

    def add(self, tokens: int) -> tuple[Piece, ...]:
        """``tokens`` more; all that the session has said so far."""
        if not self.pieces:
            head = min(HEAD_TOKENS, tokens)
            self.pieces = (self.maker.piece((self.name, "head"), head),)
            tokens -= head
        if tokens > 0:
            self.pieces += (self._more(tokens),)
        return self.pieces

    def _more(self, tokens: int) -> Piece:
        corpus = self.texts.corpora.get(self.domain)
        if not corpus:
            return self.maker.piece((self.name, len(self.pieces)), tokens)
        ids = [corpus[(self._at + offset) % len(corpus)] for offset in range(tokens)]
        self._at += tokens
        return piece_of(ids)


def sessions(
    *,
    number: int,
    turns: int | None,
    divide: int,
    think_limit_s: float,
    seed: int,
    maker: TokenMaker,
    texts: Texts,
    answers: bool = True,
) -> Workload:
    """``number`` coding sessions of ``turns`` turns (8 unless said), domains in turn.

    The first prompt is log-normal around 90k tokens, each turn adds an exponential 2.4k in the mean, of which the
    former answer is a part, answers are 500 in the mean, pauses exponential with a mean of 10 s; all tokens are divided
    by ``divide``. Without ``answers`` the rules are silent about their length.
    """
    random = Random(seed)
    built = []
    for at in range(number):
        domain = texts.domains[at % len(texts.domains)]
        writer = Writer(f"session-{at}", domain, texts, maker, seed)
        made: list[Turn] = []
        for new, output, think_s in session_shape(random, turns, think_limit_s):
            added = output + new if made else new
            made.append(Turn(writer.add(-(-added // divide)), -(-output // divide), think_s))
        built.append(Session(writer.name, domain, tuple(made)))
    out = ", 500 out" if answers else ""
    rules = [
        f"Coding sessions of {turns or SESSION_TURNS} turns with seed {seed}: about 100k tokens in{out}.",
        f"Pauses are cut to {think_limit_s:g} s.",
        "What stands in for the answers in the next prompts is made, not what this engine gave.",
    ]
    if divide > 1:
        rules.append(f"Every count of tokens, in and out, is divided by {divide}.")
    return Workload("sessions", with_reuse(built), tuple(rules))


def session_shape(random: Random, turns: int | None, think_limit_s: float) -> Iterator[tuple[int, int, float]]:
    """Of each turn of a session: the tokens that its user or a tool says anew, those of the answer, and the pause
    before it in seconds."""
    prompt = int(min(140_000, random.lognormvariate(0, 0.15) * FIRST_PROMPT_TOKENS))
    for turn in range(turns or SESSION_TURNS):
        output = 50 + int(random.expovariate(1 / (OUTPUT_TOKENS - 50)))
        think_s = min(random.expovariate(1 / MEAN_THINK_S), think_limit_s) if turn else 0.0
        yield int(random.expovariate(1 / (GROWTH_TOKENS - OUTPUT_TOKENS))) if turn else prompt, output, think_s


def _fixed(name: str, shared: int, own: int, output: int) -> Callable[..., Workload]:
    def build(
        *, number: int, divide: int, seed: int, maker: TokenMaker, texts: Texts, answers: bool = True
    ) -> Workload:
        common = {
            domain: Writer(f"shared-{domain}", domain, texts, maker, seed).add(-(-shared // divide))
            for domain in texts.domains
            if shared
        }
        built = []
        for at in range(number):
            domain = texts.domains[at % len(texts.domains)]
            pieces = common.get(domain, ()) + Writer(f"{name}-{at}", domain, texts, maker, seed).add(-(-own // divide))
            built.append(Session(f"{name}-{at}", domain, (Turn(pieces, -(-output // divide)),)))
        what = f"{shared:,} tokens in common and {own:,} of its own" if shared else f"{own:,} tokens"
        rules = [f"Each request is a session: {what} in{f', {output} out' if answers else ''}, with seed {seed}."]
        if divide > 1:
            rules.append(f"Every count of tokens, in and out, is divided by {divide}.")
        return Workload(name, with_reuse(built), tuple(rules))

    return build


FIXED = {"3k-100": (0, 3_000, 100), "50k-200": (45_000, 5_000, 200)}
"""Two fixed shapes, by tokens shared by all, of its own, and out."""
SHAPES = {name: _fixed(name, *sizes) for name, sizes in FIXED.items()}
