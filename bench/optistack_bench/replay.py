"""Recorded sessions as a workload: equal block hashes become equal tokens, different ones different tokens."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from optistack.traces import Trace, TraceRequest, TraceSession
from optistack_bench.tokens import Piece, TokenMaker
from optistack_bench.workload import Session, Turn, Workload, with_reuse

PIECE_TOKENS = 2
"""The shortest piece that can be told from every other."""


def replay(
    trace: Trace,
    *,
    name: str,
    sessions: int,
    turns: int | None,
    divide: int,
    think_limit_s: float,
    seed: int,
    maker: TokenMaker,
) -> Workload:
    """``sessions`` sessions of ``trace``, drawn with ``seed`` and without repetition while there are enough of them.

    ``turns``   the first turns of each that are taken; None for all
    ``divide``  a power of two by which every count of tokens is divided
    ``maker``   with another salt it makes a workload of the same shape that has no block in common

    A block becomes a piece of as many tokens as it has, divided; where that is less than two, as many blocks in a row
    as it takes become one piece of two tokens. Tokens behind the last hashed block are of that request alone.
    """
    drawn = draw(trace.sessions, sessions, seed)
    built = [
        _session(one, f"{one.name}#{copy}", copy, maker, turns=turns, divide=divide, think_limit_s=think_limit_s)
        for one, copy in drawn
    ]
    rules = [
        _drawn(len(drawn), len(trace.sessions), seed) + (f", the first {turns} turns of each." if turns else "."),
        f"Pauses are cut to {think_limit_s:g} s.",
        "The recorded answers stand in the next prompts, not the ones that this engine gave.",
    ]
    if divide > 1:
        rules.append(f"Every count of tokens, in and out, is divided by {divide}; which blocks are shared is kept.")
    if trace.skipped:
        lines = "line was" if len(trace.skipped) == 1 else "lines were"
        rules.append(f"{len(trace.skipped)} {lines} skipped in the trace: {'; '.join(trace.skipped[:3])}.")
    return Workload(name, with_reuse(built), tuple(rules), trace.skipped)


def _drawn(number: int, of: int, seed: int) -> str:
    if number == of:
        return f"All {of} sessions"
    if number < of:
        return f"{number} of {of} sessions, drawn with seed {seed}"
    return f"{number} sessions, drawn with seed {seed} from {of}, those that come again with blocks of their own"


def draw(sessions: Sequence[TraceSession], number: int, seed: int) -> list[tuple[TraceSession, int]]:
    """``number`` sessions, each with the count of its earlier copies: recorded order where they have times."""
    order = list(sessions)
    if any(one.start_s is None for one in order):
        Random(seed).shuffle(order)
    return [(order[at % len(order)], at // len(order)) for at in range(number)]


def _session(
    recorded: TraceSession,
    name: str,
    copy: int,
    maker: TokenMaker,
    *,
    turns: int | None,
    divide: int,
    think_limit_s: float,
) -> Session:
    scope = (recorded.name if recorded.local else "", copy)

    def build(requests: Sequence[TraceRequest], name: str) -> Session:
        built = []
        for number, request in enumerate(requests):
            forks = tuple(build(fork, f"{name}.{number}.{at}") for at, fork in enumerate(request.forks))
            pieces = _pieces(request, recorded.block_tokens, divide, scope, f"{name}/{number}", maker)
            think_s = min(request.think_s, think_limit_s)
            built.append(Turn(pieces, -(-request.output_tokens // divide), think_s, forks))
        return Session(name, "made", tuple(built), recorded.start_s)

    return build(recorded.requests[:turns], name)


def _pieces(
    request: TraceRequest, block_tokens: int, divide: int, scope: object, own: str, maker: TokenMaker
) -> tuple[Piece, ...]:
    blocks_a_piece = max(1, PIECE_TOKENS * divide // block_tokens)
    tokens = block_tokens * blocks_a_piece // divide
    left = -(-request.input_tokens // divide)
    pieces = []
    for at in range(0, len(request.hash_ids), blocks_a_piece):
        ids = request.hash_ids[at : at + blocks_a_piece]
        if len(ids) < blocks_a_piece or left <= 0:
            break
        pieces.append(maker.piece((scope, ids), min(tokens, left)))
        left -= tokens
    if left > 0:
        pieces.append(maker.piece((scope, own), left))
    return tuple(pieces)
