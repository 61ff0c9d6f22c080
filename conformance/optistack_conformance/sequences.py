"""Generations under a known state of the cache, decoded and scored: what tier 1 is judged on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from optistack.errors import CheckFailedError
from optistack_conformance import greedy
from optistack_conformance.cases import chunks, prose, sessions
from optistack_conformance.engine import prompted_tokens, read_counts, read_engine
from optistack_conformance.margin import ScoredToken
from optistack_conformance.scoring import Decoded, Position, Scorer, as_scored
from optistack_conformance.statistics.acceptance import Drafts
from optistack_conformance.statistics.kl import k3

if TYPE_CHECKING:
    from optistack.verify.endpoint import Endpoint
    from optistack_conformance.engine import Counts

ATTEMPTS = 20
TOKENS_A_CHUNK = 64
NO_PAGE_TOKENS = 64
CHANCE_TOKENS = 8
"""Two texts may begin with the same few tokens; where a page is one token, those come from the cache rightly."""


@dataclass(frozen=True)
class Measured:
    """A generation with its prefill's view of the same tokens."""

    decoded: Decoded
    positions: tuple[Position, ...]

    @property
    def prefill_logprobs(self) -> list[float]:
        return [position.logprob for position in self.positions]

    @property
    def kl(self) -> float:
        """Decode against prefill, k3, in nat."""
        return k3(self.decoded.logprobs, self.prefill_logprobs)


@dataclass(frozen=True)
class Run:
    """Generations, the drafts that they took, and how many tokens of their prompts came from a cache (None: the server
    counts none)."""

    sequences: list[Measured]
    drafts: Drafts | None = None
    cached_tokens: float | None = None


class Maker(Protocol):
    """Makes prompts as token ids: ``sessions`` or ``branches``."""

    def __call__(self, scorer: Scorer, *, number: int, page_tokens: int, seed: str) -> list[tuple[int, ...]]: ...


def fresh_prompts(
    scorer: Scorer, *, number: int, page_tokens: int | None, seed: str, make: Maker = sessions
) -> list[tuple[int, ...]]:
    """Prompts of sessions that the server has not seen (see :func:`~optistack_conformance.cases.sessions`).

    A server that ran the suite before may still hold what it was asked then, or part of it. Where it counts the tokens
    of all prompts, this count is part of the seed, and no two runs ask the same; and what it says to hold is not taken.
    """
    seed = f"{seed}/{prompted_tokens(scorer.client) or 0:g}"
    for attempt in range(ATTEMPTS):
        prompts = make(scorer, number=number + 1, page_tokens=page_tokens or NO_PAGE_TOKENS, seed=f"{seed}/{attempt}")
        if (scorer.decode(prompts[0], 1).cached_tokens or 0) <= CHANCE_TOKENS:
            return prompts[1:]
    raise CheckFailedError(f"{scorer.client.url} says that prompts it has never seen come from its cache.")


def measure(
    scorer: Scorer, prompts: Sequence[tuple[int, ...]], *, max_tokens: int, concurrency: int, alone: int | None = None
) -> list[Measured]:
    """Greedy generations, then scored. The first ``alone`` are made one by one and the others in a batch; half of them
    unless said otherwise, so that both batch shapes are in."""
    half = len(prompts) // 2 if alone is None else alone

    def decode(prompt: tuple[int, ...]) -> Decoded:
        return scorer.decode(prompt, max_tokens)

    decoded = [decode(prompt) for prompt in prompts[:half]]
    decoded += scorer.client.parallel(decode, prompts[half:], concurrency)
    return [Measured(one, scorer.prefill(one.prompt_ids, one.output_ids)) for one in decoded]


def prefill_again(scorer: Scorer, measured: Sequence[Measured], *, concurrency: int) -> list[list[float]]:
    """Log probabilities of the same tokens scored in a batch: against the first scoring, this is the A/A noise."""
    found = scorer.client.parallel(
        lambda one: scorer.prefill(one.decoded.prompt_ids, one.decoded.output_ids), measured, concurrency
    )
    return [[position.logprob for position in positions] for positions in found]


def draw(
    scorer: Scorer, *, tokens: int, concurrency: int, seed: str, temperature: float = 0.0, top: int = 1
) -> list[Measured]:
    """``tokens`` tokens in many short generations of many kinds, in batches; at a temperature, each with its seed."""

    def one(task: tuple[int, int]) -> Measured:
        number, size = task
        kind = greedy.PROMPTS[number % len(greedy.PROMPTS)]
        ids = scorer.token_ids(f"{prose(f'{seed}/{number}', 1)}\n\n{kind}")
        decoded = scorer.decode(ids, size, temperature=temperature, seed=number if temperature else None)
        return Measured(decoded, scorer.prefill(ids, decoded.output_ids, top=top))

    return scorer.client.parallel(one, list(enumerate(chunks(tokens, TOKENS_A_CHUNK))), concurrency)


def counted(endpoint: Endpoint, work: Callable[[], list[Measured]]) -> Run:
    """What ``work`` generated, with the drafts and the cached tokens that it took: as the answers tell them (SGLang),
    or by counters (vLLM), which is right while nobody else uses the server."""
    before = read_counts(endpoint)
    sequences = work()
    after = read_counts(endpoint)
    return Run(sequences, _drafts(sequences, before, after), _cached(sequences, before, after))


def _drafts(sequences: Sequence[Measured], before: Counts, after: Counts) -> Drafts | None:
    told = [one.decoded.drafts for one in sequences if one.decoded.drafts is not None]
    if told:
        return _sum(told)
    number, accepted = _moved(before.drafts, after.drafts), _moved(before.accepted, after.accepted)
    return None if not number or accepted is None else Drafts(number, accepted)


def _cached(sequences: Sequence[Measured], before: Counts, after: Counts) -> float | None:
    told = [one.decoded.cached_tokens for one in sequences if one.decoded.cached_tokens is not None]
    return sum(told) if told else _moved(before.hits, after.hits)


def _moved(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(after - before, 0.0)


def _sum(drafts: Sequence[Drafts]) -> Drafts | None:
    number = sum(one.number for one in drafts)
    return Drafts(number, sum(one.accepted for one in drafts)) if number else None


def evict(scorer: Scorer, capacity_tokens: int, *, seed: str) -> None:
    """Fill a device of ``capacity_tokens`` with other prompts, so that what was served before is on it no more. Where
    several engines share the port, each of them, if they share the prompts evenly."""
    engine = read_engine(scorer.client)
    length = min(max(256, min(2048, capacity_tokens // 8)), (engine.max_tokens or 4096) - 8)
    text = scorer.token_ids(prose(f"filler/{seed}", 24))

    def fill(number: int) -> None:
        head = scorer.token_ids(f"Filler number {number} of {seed}:")
        scorer.decode((*head, *(text * (length // len(text) + 1)))[:length], 1)

    scorer.client.parallel(fill, range(engine.engines * (capacity_tokens // length + 2)), 2)


def scored_tokens(measured: Sequence[Measured]) -> list[ScoredToken]:
    """For :func:`optistack_conformance.margin.judge`."""
    return [token for number, one in enumerate(measured) for token in as_scored(one.positions, number)]
