"""What cache tiers promise in any composition: KV that comes back from below is the KV that went down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer, Bench, bench_case
from optistack_conformance.engine import tier_hits
from optistack_conformance.outcomes import Outcome
from optistack_conformance.sequences import evict
from optistack_conformance.statistics.kl import ceiling, judge_kl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optistack.cases import ConformanceCase

PROMPTS = 6
PROOF = "the same tokens scored in one prefill, which reads no cache"


def tier_hit(bench: Bench) -> Answer:
    """Serve prompts, fill the device with others, serve the first ones again: they come from the tier."""
    capacity = bench.engine.kv_tokens
    if capacity is None:
        return Answer(Status.UNPROVEN, "nothing", why="the server does not say how many KV tokens fit on the device")
    prompts = bench.prompts(PROMPTS, "hicache/tier-hit")
    cold = bench.run(prompts)
    evict(bench.scorer, capacity, seed="hicache")
    before = tier_hits(bench.client)
    back = bench.run(prompts)
    moved = tier_hits(bench.client) - before
    if moved <= 0 and bench.engine.engines > 1:
        why = f"others of the {bench.engine.engines} engines on this port may have got the first prompts again"
        return Answer(Status.UNPROVEN, "0 tokens from the tier", why=why)
    if moved <= 0:
        why = "after the device was filled with other prompts, nothing of the first ones came from a tier"
        return Answer(Status.FAIL, "0 tokens from the tier", why=why)
    verdict = bench.margin(back)
    kl = judge_kl(
        [one.kl for one in back.sequences], [one.kl for one in cold.sequences], ceiling(bench.engine.kv_dtype)
    )
    says = f"{moved:,.0f} tokens from the tier; {verdict.describe()}; KL {kl.mean:.2g} nat (at most {kl.threshold:.2g})"
    if verdict.passed and kl.outcome is Outcome.INCONCLUSIVE:
        return Answer(Status.UNPROVEN, says, PROOF, "without a cache, too, decode and prefill differ by more than this")
    why = "answers on KV from the tier are not those of a prefill: what came back is not what went down"
    return Answer.of(verdict.passed and kl.outcome is Outcome.PASS, says, proof=PROOF, why=why)


CASES: Sequence[ConformanceCase] = (
    bench_case(
        "hicache/tier-hit",
        tier=1,
        summary="A prefix that was evicted and came back from a tier gives the same tokens, scored.",
        asked="tokens from a tier, with the log probabilities of a prefill",
        work=tier_hit,
    ),
)
