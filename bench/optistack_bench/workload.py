"""What is sent: sessions of turns, each a prompt of token ids and a number of tokens to answer with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from optistack.errors import InputError
from optistack_bench.tokens import Piece

MAX_DIVIDE = 4_096


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session.

    ``reusable_tokens``  the head of its prompt that an earlier request of the workload has, too: what a cache that
                         forgets nothing could give it
    ``think_s``          pause between the end of the turn before and this one
    ``text``             in a chat, what its user says; ``pieces`` then foresee its length
    ``forks``            sub-agents that start with this turn and that the next one waits for
    """

    pieces: tuple[Piece, ...]
    output_tokens: int
    think_s: float = 0.0
    forks: tuple[Session, ...] = ()
    reusable_tokens: int = 0
    text: str = ""

    @property
    def prompt_tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    @property
    def prompt(self) -> bytes:
        """The ids as a JSON array."""
        return b"[%b]" % b",".join([piece.ids for piece in self.pieces])


@dataclass(frozen=True, slots=True)
class Session:
    """``domain`` is what its text is: ``code``, ``prose``, or ``made`` of random words. ``start_s`` is when it starts
    in an open loop that follows the recording."""

    name: str
    domain: str
    turns: tuple[Turn, ...]
    start_s: float | None = None

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of the longest request, those of its sub-agents included."""
        return max(turn.prompt_tokens + turn.output_tokens for one in self.everyone() for turn in one.turns)

    def everyone(self) -> Iterator[Session]:
        """This session and its sub-agents."""
        yield self
        for turn in self.turns:
            for fork in turn.forks:
                yield from fork.everyone()


@dataclass(frozen=True, slots=True)
class Workload:
    """``rules`` say in sentences what was done to make it: scaling, clipping, sampling. They stand in every report.

    ``skipped`` is what was wrong with lines of a trace that were left out.
    """

    name: str
    sessions: tuple[Session, ...]
    rules: tuple[str, ...]
    skipped: tuple[str, ...] = ()

    def turns(self) -> Iterator[Turn]:
        return (turn for session in self.sessions for one in session.everyone() for turn in one.turns)

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of the longest request."""
        return max(session.longest_tokens for session in self.sessions)

    def digest(self) -> str:
        """sha256 of all that is sent: runs with equal digests can be compared."""
        digest = hashlib.sha256()
        if any(turn.text for turn in self.turns()):
            digest.update(self.name.encode())  # which says whether tools go with it
        for session in self.sessions:
            for one in session.everyone():
                digest.update(f"{one.name} {one.domain} {one.start_s}\n".encode())
                for turn in one.turns:
                    digest.update(b"%d %r " % (turn.output_tokens, turn.think_s) + turn.prompt + b"\n")
        return digest.hexdigest()[:16]


def prefill_only(workload: Workload) -> Workload:
    """``workload`` with one token to each answer."""

    def cut(session: Session) -> Session:
        turns = (replace(one, output_tokens=1, forks=tuple(map(cut, one.forks))) for one in session.turns)
        return replace(session, turns=tuple(turns))

    rules = ("Prefill only: every request asks for one token.", *workload.rules)
    return replace(workload, sessions=tuple(map(cut, workload.sessions)), rules=rules)


def with_reuse(sessions: Sequence[Session]) -> tuple[Session, ...]:
    """``sessions`` with each turn's ``reusable_tokens``, in the order in which they stand."""
    seen: dict[tuple[int, Piece], int] = {}

    def walk(session: Session) -> Session:
        turns = []
        for turn in session.turns:
            forks = tuple(walk(fork) for fork in turn.forks)
            turns.append(replace(turn, forks=forks, reusable_tokens=_known(turn.pieces, seen)))
        return replace(session, turns=tuple(turns))

    return tuple(walk(session) for session in sessions)


def _known(pieces: Iterable[Piece], seen: dict[tuple[int, Piece], int]) -> int:
    """Tokens of the longest head of ``pieces`` in the tree ``seen``, which is left with all of them in it."""
    node, tokens, known = 0, 0, True
    for piece in pieces:
        child = seen.get((node, piece))
        if child is None:
            known = False
            child = seen[node, piece] = len(seen) + 1
        elif known:
            tokens += piece.tokens
        node = child
    return tokens


def check_fits(workload: Workload, context_tokens: int | None, model: str, *, divide: int) -> None:
    """Raise InputError when a request is longer than the model's context, with what would fit."""
    longest = workload.longest_tokens
    if context_tokens is None or longest <= context_tokens:
        return
    factor = divide
    while factor <= MAX_DIVIDE and -(-longest * divide // factor) + 1 > context_tokens:
        factor *= 2
    raise InputError(
        f"The longest request of {workload.name} takes {longest:,} tokens, and {model} has a context of "
        f"{context_tokens:,}.",
        fix=f"--divide {factor} makes every count of tokens that much smaller, which fits."
        if factor <= MAX_DIVIDE
        else f"No --divide up to {MAX_DIVIDE:,} makes it fit: take a shorter workload or a longer context.",
    )
