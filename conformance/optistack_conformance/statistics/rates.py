"""How often the judgements are wrong: simulated clean runs, and faults at the sample sizes of a profile.

``python -m optistack_conformance.statistics.rates`` prints the tables of docs/conformance.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from optistack_conformance.evals.items import load_items
from optistack_conformance.margin import BOUND_NAT
from optistack_conformance.outcomes import Outcome
from optistack_conformance.selection import LONG_CONTEXT_TOKENS, PROFILES, Profile
from optistack_conformance.statistics.acceptance import Drafts, judge_acceptance
from optistack_conformance.statistics.kl import CEILINGS, judge_kl
from optistack_conformance.statistics.paired import (
    FAIL_ALPHA,
    MARGINS,
    RETRIEVAL_MARGIN,
    Paired,
    judge_non_inferiority,
    mcnemar_p,
)
from optistack_conformance.statistics.sampling import RANKS, judge_sampling

Array = NDArray[np.float64]

ROUNDING_NAT = 0.019
"""Standard deviation between two roundings of a log probability. Measured on vLLM 0.32 for CPUs in BF16: 0.014, 0.019
and 0.023 in sequences that were decoded alone (k3 1e-4 to 3e-4), 0 in those decoded in a batch
(evidence/conformance-vllm-cpu). Here every sequence has it, which leaves the floor less room."""

SEQUENCE_SPREAD = 0.25
"""Standard deviation of log rounding between sequences, as in these three."""

TAIL_DEGREES = 6
"""Within a sequence, Student's t with 6 degrees: its kurtosis is the 6 that was measured."""

MARGIN_ROUNDING_NAT = 0.04
"""Of the difference of two logits, twice what was measured; the largest margin seen on a healthy engine: 0.125 nat."""

FLIP_RATE = 0.10
"""Items that come out differently between two runs of one thing. High: 0 was measured at equal batch shapes."""

ACCURACY = 0.55


@dataclass(frozen=True)
class Rate:
    """``hits`` of ``runs``, with a one-sided 95% Clopper-Pearson bound on either side."""

    hits: int
    runs: int

    @property
    def rate(self) -> float:
        return self.hits / self.runs

    @property
    def upper(self) -> float:
        from scipy.stats import beta

        return float(beta.ppf(0.95, self.hits + 1, self.runs - self.hits)) if self.hits < self.runs else 1.0

    @property
    def lower(self) -> float:
        from scipy.stats import beta

        return float(beta.ppf(0.05, self.hits, self.runs - self.hits + 1)) if self.hits else 0.0


def false_alarms(runs: int, profile: Profile, *, seed: int = 0) -> dict[str, Rate]:
    """How often each judgement, and any of them, fails a run in which candidate and baseline are the same thing.

    A run judges tasks either as lossless (McNemar) or as lossy (tier 2), never as both; "any" takes the worse.
    """
    random = np.random.default_rng(seed)
    items = load_items(profile)
    long = sum(item.context_tokens >= LONG_CONTEXT_TOKENS for item in items)
    failed: dict[str, NDArray[np.bool_]] = {
        "KL, five comparisons": np.zeros(runs, bool),
        "greedy margin": _margins(random, runs, profile.greedy_tokens) > BOUND_NAT,
        "samples, chi-square": np.zeros(runs, bool),
        "acceptance length, warm against cold": np.zeros(runs, bool),
        "tasks, McNemar": np.zeros(runs, bool),
        "tier 2, all tasks": np.zeros(runs, bool),
        "tier 2, long needles": np.zeros(runs, bool),
    }
    for run in range(runs):
        for _ in range(5):
            values, floor = _kl_values(random, profile), _kl_values(random, profile)
            verdict = judge_kl(list(values), list(floor), CEILINGS["16-bit"])
            failed["KL, five comparisons"][run] |= verdict.outcome is Outcome.FAIL
        failed["samples, chi-square"][run] = not judge_sampling(*_draws(random, profile.sampled_tokens, 0.0)).passed
        cold, warm = _drafts(random, profile), _drafts(random, profile)
        failed["acceptance length, warm against cold"][run] = judge_acceptance(warm, cold).outcome is Outcome.FAIL
        rest, far = _pairs(random, len(items) - long), _pairs(random, long)
        both = Paired(rest.n + far.n, rest.both + far.both, rest.lost + far.lost, rest.gained + far.gained)
        failed["tasks, McNemar"][run] = mcnemar_p(both) <= FAIL_ALPHA
        failed["tier 2, all tasks"][run] = judge_non_inferiority(both, MARGINS["fp8-kv"]) is Outcome.FAIL
        failed["tier 2, long needles"][run] = judge_non_inferiority(far, RETRIEVAL_MARGIN) is Outcome.FAIL
    for kind, other in (("lossless", "tier 2"), ("lossy", "tasks")):
        judged = [hits for name, hits in failed.items() if not name.startswith((other, "any"))]
        failed[f"any, of a run that claims to be {kind}"] = np.any(judged, axis=0)
    return {name: Rate(int(hits.sum()), runs) for name, hits in failed.items()}


def false_passes(runs: int, items: int, margin: float, *, seed: int = 0) -> Rate:
    """How often tier 2 passes a candidate that loses exactly ``margin``: the risk that its 95% bound stands for."""
    random = np.random.default_rng(seed)
    found = [judge_non_inferiority(_pairs(random, items, margin), margin) is Outcome.PASS for _ in range(runs)]
    return Rate(sum(found), runs)


def detections(runs: int, *, seed: int = 0) -> dict[str, Rate]:
    """How often faults that have a rate or a size are found, at the sample size that their row names."""
    random = np.random.default_rng(seed)
    quick, full = PROFILES["quick"], PROFILES["full"]
    found: dict[str, Rate] = {}
    for share, profile in ((0.01, quick), (0.001, full)):
        # Of tokens drawn blindly from the vocabulary, this share lies beyond the bound (toy and SmolLM2: above 0.9).
        wrong = random.random((runs, profile.greedy_tokens)) < share * 0.9
        name = f"wrong token accepted, {share:.1%} ({profile.name}, {profile.greedy_tokens:,} greedy tokens)"
        found[name] = Rate(int(wrong.any(axis=1).sum()), runs)
    for name, size in (("FP8", 0.12), ("INT4", 0.35)):
        hits = 0
        for _ in range(runs):
            values = _kl_values(random, quick, extra=size)
            hits += judge_kl(list(values), list(_kl_values(random, quick)), CEILINGS["16-bit"]).outcome is Outcome.FAIL
        tokens = quick.sequences * quick.sequence_tokens
        found[f"logits off as with {name} (quick, {quick.sequences} sequences, {tokens} tokens)"] = Rate(hits, runs)
    for share in (0.05, 0.10, 0.25):
        hits = sum(not judge_sampling(*_draws(random, quick.sampled_tokens, share)).passed for _ in range(runs))
        found[f"{share:.0%} of samples taken greedily (quick, {quick.sampled_tokens:,} samples)"] = Rate(hits, runs)
    return found


def _kl_values(random: np.random.Generator, profile: Profile, *, extra: float = 0.0) -> Array:
    """k3 of each sequence between two roundings of it; ``extra`` is the size of a further difference of the logits."""
    shape = (profile.sequences, profile.sequence_tokens)
    scale = ROUNDING_NAT * np.exp(random.normal(0.0, SEQUENCE_SPREAD, (profile.sequences, 1)))
    difference = scale * random.standard_t(TAIL_DEGREES, shape) / np.sqrt(1.5)
    if extra:
        # A logit that is off moves a log probability by itself less its share in the normalization.
        difference = difference + extra * random.normal(0.0, 1.0, shape) * random.uniform(0.2, 1.0, shape)
    values: Array = np.mean(np.expm1(difference) - difference, axis=1)
    return values


def _margins(random: np.random.Generator, runs: int, tokens: int) -> Array:
    """The largest margin of each run: where two logits are nearer than the rounding, the lower one may be emitted."""
    largest = np.zeros(runs)
    for _ in range(0, tokens, 500):
        gap = random.exponential(2.0, (runs, 500))
        noise = random.normal(0.0, MARGIN_ROUNDING_NAT, (runs, 500))
        largest = np.maximum(largest, np.where(np.abs(noise) > gap, gap + np.abs(noise), 0.0).max(axis=1))
    return largest


def _pairs(random: np.random.Generator, items: int, loss: float = 0.0) -> Paired:
    lost, gained = (FLIP_RATE + loss) / 2, (FLIP_RATE - loss) / 2
    counts = random.multinomial(items, (lost, gained, ACCURACY - lost, 1.0 - ACCURACY - gained))
    return Paired(n=items, lost=int(counts[0]), gained=int(counts[1]), both=int(counts[2]))


def _drafts(random: np.random.Generator, profile: Profile) -> Drafts:
    """As many drafts as the sequences of a cache state take, at an acceptance length of 3."""
    number = profile.sequences * profile.sequence_tokens // 3
    return Drafts(number, float((random.geometric(1.0 / 3.0, number) - 1).sum()))


@cache
def _distributions() -> tuple[Array, Array]:
    """Top probabilities of distributions from sharp to flat [number, 20], and the edges of their cells [number, 5]."""
    exponent = np.linspace(0.8, 3.0, 4_000)[:, None]
    weights = np.arange(1, 401, dtype=float)[None, :] ** -exponent
    weights /= weights.sum(axis=1, keepdims=True)
    return weights[:, : RANKS[-1]].copy(), np.cumsum(weights, axis=1)[:, [rank - 1 for rank in RANKS]]


def _draws(random: np.random.Generator, tokens: int, greedy_share: float) -> tuple[NDArray[np.int64], Array]:
    """Ranks of drawn tokens (the last of their cell) and the top probabilities that they were drawn from."""
    top, edges = _distributions()
    chosen = random.integers(0, len(top), tokens)
    cells = (edges[chosen] < random.random((tokens, 1))).sum(axis=1)
    ranks = np.array([*RANKS, RANKS[-1] + 1])[cells]
    return np.where(random.random(tokens) < greedy_share, 1, ranks), top[chosen]


def _print(title: str, rates: Mapping[str, Rate], bound: str) -> None:
    print(f"\n{title}\n\n| | found | rate | {bound} 95% bound |\n|---|---|---|---|")
    for name, rate in rates.items():
        edge = rate.upper if bound == "upper" else rate.lower
        print(f"| {name} | {rate.hits} of {rate.runs:,} | {rate.rate:.2%} | {edge:.2%} |")


def main(runs: int = 10_000) -> None:
    for profile in PROFILES.values():
        _print(f"False alarms, {profile.name} profile", false_alarms(runs, profile), "upper")
    passes = {f"loss of exactly 1 point, {n:,} items": false_passes(runs, n, 0.01) for n in (400, 6_400)}
    _print("Tier 2 passes what it should not", passes, "upper")
    _print("Detections", detections(runs), "lower")


if __name__ == "__main__":
    main()
