"""What routing promises in any composition: a session meets its own prefix again, and no other session's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer, Bench, bench_case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optistack.cases import ConformanceCase

SESSIONS = 6
CONCURRENCY = 3
TURN_TOKENS = 32
PAGES_LEFT_OUT = 2
"""At the end of a repeated prompt: the last page is always computed again, and some drafting methods drop one more."""

SMALLEST_PAGE_TOKENS = 8
"""With pages of one token some tokens at the end are left out all the same, by drafting or overlapped scheduling."""


def prefix_stays(bench: Bench) -> Answer:
    """Sessions take turns; the second turn of each is the first one grown by its answer."""
    page = bench.engine.page_tokens
    if not page:
        return Answer(Status.UNPROVEN, "nothing", why="the server does not say how large a KV page is")
    first = [bench.scorer.decode(prompt, TURN_TOKENS) for prompt in bench.prompts(SESSIONS, "routing/prefix-stays")]
    grown = [(*one.prompt_ids, *one.output_ids) for one in first]
    second = bench.client.parallel(lambda prompt: bench.scorer.decode(prompt, 1), grown, CONCURRENCY)
    cached = [one.cached_tokens for one in second]
    if any(tokens is None for tokens in cached):
        return Answer(Status.UNPROVEN, "nothing", why="the answers do not report cached tokens")
    allowed = PAGES_LEFT_OUT * max(page, SMALLEST_PAGE_TOKENS)
    # Of the first turn's prompt: whether an engine keeps its own answers, too, is not routing's to promise.
    missing = [len(one.prompt_ids) - (tokens or 0) for one, tokens in zip(first, cached, strict=True)]
    short = [tokens for tokens in missing if tokens > allowed]
    says = f"{len(grown) - len(short)} of {len(grown)} second turns found all but {allowed} tokens of the first"
    why = f"up to {max(missing):,} tokens of a session were computed again: its turns met different caches"
    return Answer.of(not short, says, proof="cached tokens of each answer", why=why)


def sessions_do_not_leak(bench: Bench) -> Answer:
    """Sessions that share pages behind different beginnings, interleaved and then repeated from the cache."""
    prompts = bench.prompts(SESSIONS, "routing/sessions-do-not-leak")
    fresh, again = bench.run(prompts, concurrency=CONCURRENCY), bench.run(prompts, concurrency=CONCURRENCY)
    verdict = bench.margin(fresh, again)
    cached = max(one.decoded.cached_tokens or 0 for one in fresh.sequences)
    page = bench.engine.page_tokens or len(prompts[0])
    if cached >= page:
        says = f"{cached:,} tokens of a new session came from the cache"
        return Answer(Status.FAIL, says, "cached tokens of each answer", "its first page was new, so nothing could")
    why = "a session's answer follows another session's tokens"
    return Answer.of(verdict.passed, verdict.describe(), proof="the same tokens scored in one prefill", why=why)


CASES: Sequence[ConformanceCase] = (
    bench_case(
        "routing/prefix-stays",
        tier=1,
        summary="The next turn of a session finds its prefix: it reached the replica that has it.",
        asked=f"all but {PAGES_LEFT_OUT} pages of each session's first turn from the cache in its second",
        work=prefix_stays,
    ),
    bench_case(
        "routing/sessions-do-not-leak",
        tier=1,
        summary="Sessions at once get answers to their own tokens, and nothing of a new one is cached.",
        asked="every token within rounding of what a prefill of the session alone says",
        work=sessions_do_not_leak,
    ),
)
