"""What an FP8 KV cache must not do in any composition: lose what stands far back in a long context.

It is the model's own short contexts that judge, on the same engine: they are as good as without FP8. With a baseline
tier 2 judges the same by pairs, more finely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer, Bench, bench_case
from optistack_conformance.evals.needle import items
from optistack_conformance.evals.run import run_items
from optistack_conformance.statistics.paired import COLLAPSE_ALPHA, COLLAPSE_RECOVERY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optistack.cases import ConformanceCase

NEEDLES = 8
SHORT_TOKENS = 256
LONG_TOKENS = (16_384, 8_192, 4_096, 2_048, 1_024)
CONTEXT_SHARE = 4
"""The long needles lie in the longest of these that is at most a quarter of the context: near its end a small model
loses needles by itself."""

KEPT = 0.75
CONCURRENCY = 4


def long_context_retrieval(bench: Bench) -> Answer:
    """Needles in a long context against needles in a short one, same questions, same engine."""
    context = bench.engine.max_tokens or 0
    long = next((tokens for tokens in LONG_TOKENS if tokens * CONTEXT_SHARE <= context), None)
    if long is None:
        why = f"a context of {context:,} tokens is too short for needles in {LONG_TOKENS[-1]:,} and more"
        return Answer(Status.UNPROVEN, "nothing", why=why)
    near, far = (
        sum(answer.passed for answer in run_items(bench.client, items([tokens], NEEDLES), concurrency=CONCURRENCY))
        for tokens in (SHORT_TOKENS, long)
    )
    return judge(near, far, long)


def judge(near: int, far: int, long_tokens: int) -> Answer:
    """The verdict on ``near`` and ``far`` needles found of ``NEEDLES`` each. Pure.

    A pass needs so many near ones that losing every far one would have failed: 6 of 8.
    """
    says = f"{far} of {NEEDLES} needles in {long_tokens:,} tokens, {near} of {NEEDLES} in {SHORT_TOKENS}"
    p_value = _fisher(far, near)
    proof = f"needles of the suite's own set, Fisher's exact p = {p_value:.2g}"
    if far >= KEPT * near and _fisher(0, near) <= COLLAPSE_ALPHA:
        return Answer(Status.PASS, says, proof)
    if far < COLLAPSE_RECOVERY * near and p_value <= COLLAPSE_ALPHA:
        return Answer(Status.FAIL, says, proof, "long contexts are lost, which short tasks do not see")
    why = "the model finds too few needles to tell: a baseline (--baseline) would"
    return Answer(Status.UNPROVEN, says, proof, why)


def _fisher(far: int, near: int) -> float:
    """One-sided p of "fewer are found far than near"."""
    import numpy as np
    from scipy.stats import fisher_exact

    table = np.array([[far, NEEDLES - far], [near, NEEDLES - near]])
    return float(fisher_exact(table, alternative="less").pvalue)


CASES: Sequence[ConformanceCase] = (
    bench_case(
        "kv-fp8/long-context-retrieval",
        tier=2,
        summary="A fact far back in a long context is found as one in a short context is.",
        asked=f"at least {KEPT:g} of the needles that are found in {SHORT_TOKENS} tokens",
        work=long_context_retrieval,
    ),
)
