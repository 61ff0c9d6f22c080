"""The same tokens as decode and as prefill, under each state of the cache, and on the baseline."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from optistack_conformance.cases import Measure, branches
from optistack_conformance.client import Client
from optistack_conformance.engine import EngineInfo, tier_hits
from optistack_conformance.outcomes import InconclusiveError, Outcome, inconclusive
from optistack_conformance.reference import Reference
from optistack_conformance.scoring import Scorer
from optistack_conformance.selection import Selection
from optistack_conformance.sequences import Run, counted, evict, fresh_prompts
from optistack_conformance.sequences import measure as measure_sequences
from optistack_conformance.statistics.kl import ceiling, judge_kl, k3
from optistack_conformance.tiers.lossless.hits import check_kept

CHEAP_EVICTION_TOKENS = 20_000


def test_kl_of_cold_cache(
    states: dict[str, Run], recorded: Reference | None, kv_dtype: str | None, measure: Measure
) -> None:
    """Without a cached prefix, decode gives the log probabilities that a prefill of the same tokens gives."""
    floor = recorded.decode_floor if recorded is not None else None
    _judge(measure, [one.kl for one in states["cold"].sequences], floor, ceiling(kv_dtype))


def test_kl_of_prefix_hit(states: dict[str, Run], engine: EngineInfo, kv_dtype: str | None, measure: Measure) -> None:
    """With the prefix from the cache too, no farther off than without."""
    check_kept(engine)
    _judge_hit(measure, states["hit"], states["cold"], ceiling(kv_dtype))


def test_kl_of_sessions_that_begin_alike(
    states: dict[str, Run],
    scorer: Scorer,
    engine: EngineInfo,
    selection: Selection,
    kv_dtype: str | None,
    measure: Measure,
) -> None:
    """Sessions that share their beginning and part later go on with their own KV, no farther off than a cold cache."""
    check_kept(engine)
    sizes = selection.sizes
    prompts = fresh_prompts(
        scorer,
        number=sizes.sequences,
        page_tokens=engine.page_tokens,
        seed=f"branches/{selection.seed}",
        make=branches,
    )
    found = counted(
        scorer.client,
        lambda: measure_sequences(scorer, prompts, max_tokens=sizes.sequence_tokens, concurrency=selection.concurrency),
    )
    _judge_hit(measure, found, states["cold"], ceiling(kv_dtype))


def test_kl_of_tier_hit(
    states: dict[str, Run],
    scorer: Scorer,
    candidate: Client,
    engine: EngineInfo,
    selection: Selection,
    kv_dtype: str | None,
    measure: Measure,
) -> None:
    """With the prefix from a tier below the device (after it was evicted there), no farther off than without."""
    capacity = engine.kv_tokens
    if not selection.tier_expected and (capacity is None or capacity > CHEAP_EVICTION_TOKENS):
        pytest.skip("no cache tier is expected, and filling the device to look for one takes long")
    cannot_tell = inconclusive if selection.tier_expected else pytest.skip
    if capacity is None:
        cannot_tell("the server does not say how many KV tokens fit on the device")
    try:
        tier_hits(candidate)
    except InconclusiveError as error:
        cannot_tell(str(error))
    cold = states["cold"].sequences
    evict(scorer, capacity, seed=str(selection.seed))
    before = tier_hits(candidate)
    found = measure_sequences(
        scorer,
        [one.decoded.prompt_ids for one in cold],
        max_tokens=selection.sizes.sequence_tokens,
        concurrency=selection.concurrency,
    )
    moved = tier_hits(candidate) - before
    measure.figure("tokens from the tier", moved, "tokens")
    if moved <= 0:
        if engine.engines > 1:
            cannot_tell(f"no token came from a tier: others of {engine.engines} engines may have got the prompts again")
        if selection.tier_expected:
            pytest.fail("the stack has a cache tier, but no token came from one after the device was filled")
        pytest.skip("no token came from a tier after the device was filled")
    _judge(measure, [one.kl for one in found], [one.kl for one in cold], ceiling(kv_dtype))


def test_kl_against_baseline(
    scorer: Scorer, reference: Reference, selection: Selection, kv_dtype: str | None, measure: Measure
) -> None:
    """The baseline's own tokens get the baseline's log probabilities from the candidate."""
    if selection.lossy is not None:
        pytest.skip(f"the candidate may differ ({selection.lossy}); tier 2 judges by how much")
    if not reference.sequences:
        pytest.skip("the baseline cannot score tokens")
    values = [
        k3(one.prefill_logprobs, [position.logprob for position in scorer.prefill(one.prompt_ids, one.output_ids)])
        for one in reference.sequences
    ]
    _judge(measure, values, reference.prefill_floor, ceiling(kv_dtype))


def _judge_hit(measure: Measure, hit: Run, cold: Run, bound: float) -> None:
    values, floor = ([one.kl for one in run.sequences] for run in (hit, cold))
    if hit.cached_tokens == 0 and judge_kl(values, floor, bound).outcome is Outcome.PASS:
        inconclusive("no token of a prompt came from the cache, so that there was no hit to judge")
    _judge(measure, values, floor, bound)


def _judge(measure: Measure, values: Sequence[float], floor: Sequence[float] | None, bound: float) -> None:
    verdict = judge_kl(values, floor, bound)
    measure.figure("KL (k3)", verdict.mean, "nat", at_most=verdict.threshold, floor=verdict.floor, n=verdict.n)
    noise = f"A/A p95 {verdict.floor:.2g}" if verdict.floor is not None else "no A/A"
    measure.settle(verdict.outcome, f"{verdict.mean:.2g} nat over {verdict.n} sequences, {noise}")
