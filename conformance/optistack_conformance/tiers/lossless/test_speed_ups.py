"""What a lossless plugin is there for still happens: drafts are accepted, prefixes are found."""

from __future__ import annotations

import pytest

from optistack_conformance.cases import Measure
from optistack_conformance.engine import EngineInfo
from optistack_conformance.outcomes import Outcome, inconclusive
from optistack_conformance.selection import Selection
from optistack_conformance.sequences import CHANCE_TOKENS, Run
from optistack_conformance.statistics.acceptance import KEPT, judge_acceptance
from optistack_conformance.tiers.lossless.hits import check_kept


def test_acceptance_length_is_that_of_the_reference(
    greedy: Run, engine: EngineInfo, selection: Selection, measure: Measure
) -> None:
    """The acceptance length is at least 0.95 of the one that the drafter reaches elsewhere."""
    if selection.acceptance_reference is None:
        pytest.skip("no reference is given (acceptance_reference)")
    if not greedy.drafts:
        if not engine.metrics:
            inconclusive("the server counts no drafts")
        pytest.fail("an acceptance length is expected, and the server made no draft", pytrace=False)
    reference = selection.acceptance_reference
    verdict = judge_acceptance(greedy.drafts, reference)
    measure.figure(
        "acceptance length", greedy.drafts.length, "tokens", at_least=KEPT * reference, n=int(greedy.drafts.number)
    )
    measure.figure("p-value", verdict.p_value)
    text = f"{greedy.drafts.length:.2f} tokens over {greedy.drafts.number:g} drafts, reference {reference:g}"
    measure.settle(verdict.outcome, text)


def test_acceptance_length_survives_a_prefix_hit(states: dict[str, Run], engine: EngineInfo, measure: Measure) -> None:
    """On a cached prefix drafts are accepted as on a fresh one, 0.95 of it at least."""
    cold, warm = (states[state].drafts for state in ("cold", "hit"))
    if not cold:
        pytest.skip("the server counts no drafts")
    check_kept(engine)
    if states["hit"].cached_tokens == 0:
        inconclusive("no token of a prompt came from the cache, so that there was no hit to judge")
    if not warm:
        pytest.fail(f"no draft on a cached prefix, {cold.number:g} on a fresh one", pytrace=False)
    if not cold.accepted and not warm.accepted:
        inconclusive("no draft was accepted, cold or warm: the draft is untrained or was trained for another target")
    verdict = judge_acceptance(warm, cold)
    measure.figure("warm / cold acceptance length", verdict.share, at_least=KEPT, n=int(warm.number))
    measure.figure("p-value", verdict.p_value)
    measure.settle(verdict.outcome, f"{warm.length:.2f} warm, {cold.length:.2f} cold, {warm.number:g} drafts")


def test_cached_tokens_of_a_repeated_prompt(states: dict[str, Run], engine: EngineInfo, measure: Measure) -> None:
    """A prompt that was just served comes from the cache but for its last page.

    But for two where drafts are made: some versions drop the trailing block then (1,193 tokens with pages of 128 on
    vLLM 0.32: 1,152 cached, 1,024 with dflash).
    """
    check_kept(engine)
    if engine.page_tokens is None:
        pytest.skip("the server does not say its page size")
    cached = [one.decoded.cached_tokens for one in states["hit"].sequences]
    if all(tokens is None for tokens in cached):
        pytest.skip("the server does not report cached tokens (vLLM: --enable-prompt-tokens-details)")
    missing = [len(one.decoded.prompt_ids) - (one.decoded.cached_tokens or 0) for one in states["hit"].sequences]
    allowed = engine.page_tokens * (2 if engine.speculative else 1)
    measure.figure("prompt tokens computed again", max(missing), "tokens", at_most=allowed, n=len(missing))
    length = len(states["hit"].sequences[0].decoded.prompt_ids)
    text = f"at most {max(missing)} of {length} tokens, page {engine.page_tokens}"
    if max(missing) > allowed and engine.engines > 1:
        inconclusive(f"{text}: of {engine.engines} engines another one may have got a prompt again")
    measure.settle(Outcome.PASS if max(missing) <= allowed else Outcome.FAIL, text)


def test_new_prompts_share_no_prefix(states: dict[str, Run], measure: Measure) -> None:
    """A prompt whose first page is new gets nothing from the cache, though its later pages were seen in another."""
    cached = [one.decoded.cached_tokens for one in states["cold"].sequences]
    if all(tokens is None for tokens in cached):
        pytest.skip("the server does not report cached tokens (vLLM: --enable-prompt-tokens-details)")
    largest = max(tokens or 0 for tokens in cached)
    measure.figure("cached tokens of a new prompt", largest, "tokens", at_most=CHANCE_TOKENS, n=len(cached))
    measure.settle(Outcome.PASS if largest <= CHANCE_TOKENS else Outcome.FAIL, f"at most {largest} tokens")
