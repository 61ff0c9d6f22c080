"""How many tokens to draft: what one more is accepted for, against what verifying it costs. Pure arithmetic.

A step that drafts ``k`` tokens for ``c`` requests verifies ``c (k + 1)`` tokens and yields, for each request,

    L(k) = 1 + p_1 + ... + p_k        p_i: the share of steps whose first i drafts were all accepted

so a user sees L(k) / T tokens/s. T is taken to depend on the number of verified tokens alone, and read off between the
steps that were measured at several concurrencies; the drafter's own pass is in it, and has the same cost for any k.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """``concurrency`` requests at once: ``tokens`` answered by ``drafts`` drafts of ``draft_tokens`` each, in
    ``request_s``, the seconds of all requests summed; ``by_position`` [draft_tokens] are the shares p_i."""

    concurrency: int
    tokens: int
    request_s: float
    drafts: float
    draft_tokens: int
    by_position: tuple[float, ...]

    @property
    def tokens_per_s_per_user(self) -> float:
        return self.tokens / self.request_s

    @property
    def step_s(self) -> float:
        """How long a step took: each draft is of one request, which waits for nothing else than its own steps."""
        return self.request_s / self.drafts

    @property
    def verified_tokens(self) -> int:
        return self.concurrency * (self.draft_tokens + 1)


@dataclass(frozen=True)
class Proposal:
    """For ``concurrency``: draft ``draft_tokens``. Speeds in tokens/s/user: ``predicted`` with that number,
    ``predicted_now`` with the number that the engine drafts, and ``measured`` with it."""

    concurrency: int
    draft_tokens: int
    predicted: float
    predicted_now: float
    measured: float


def acceptance_length(by_position: Sequence[float], draft_tokens: int) -> float:
    """L(k), in tokens a step."""
    return 1 + sum(by_position[:draft_tokens])


def step_seconds(rounds: Sequence[Round], verified_tokens: int) -> float:
    """T for ``verified_tokens``: between the two nearest measured steps on a straight line, beyond the smallest and the
    largest as the nearest, since a smaller batch is bound by the weights that it reads all the same."""
    measured = sorted((one.verified_tokens, one.step_s) for one in rounds)
    sizes = [size for size, _ in measured]
    at = bisect_left(sizes, verified_tokens)
    if at == 0:
        return measured[0][1]
    if at == len(measured):
        return measured[-1][1]
    (low, fast), (high, slow) = measured[at - 1], measured[at]
    return fast + (slow - fast) * (verified_tokens - low) / (high - low)


def propose(rounds: Sequence[Round]) -> list[Proposal]:
    """The best number of draft tokens at each concurrency, from one to what the engine drafts now."""
    found = []
    for one in sorted(rounds, key=lambda one: one.concurrency):
        speeds = {
            tokens: acceptance_length(one.by_position, tokens) / step_seconds(rounds, one.concurrency * (tokens + 1))
            for tokens in range(1, one.draft_tokens + 1)
        }
        best = max(speeds, key=lambda tokens: (speeds[tokens], tokens))
        now = speeds[one.draft_tokens]
        found.append(Proposal(one.concurrency, best, speeds[best], now, one.tokens_per_s_per_user))
    return found
