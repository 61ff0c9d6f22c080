"""What routing promises in any composition: a session meets its own prefix again, and no other session's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer, Bench, bench_case
from optistack_conformance.sequences import NO_PAGE_TOKENS, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optistack.cases import ConformanceCase

SESSIONS = 6
CONCURRENCY = 3
TURN_TOKENS = 32
PAGES_LEFT_OUT = 2
"""At the end of a repeated prompt: the last page is always computed again, and some drafting methods drop one more."""

LEAST_PAGE_TOKENS = 16
"""Pages of the prompts are at least as long, however short the engine's are."""

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
    # Where pages are shorter, two texts may begin with the same few tokens, which then come from the cache rightly.
    page = max(bench.engine.page_tokens or NO_PAGE_TOKENS, LEAST_PAGE_TOKENS)
    fresh, again = _twice(bench)
    runs = [fresh, again]
    found = _most_cached(fresh)
    if page <= found < 2 * page:
        # Of its own page alone, not of the shared ones behind: another text may have begun like it, but not twice.
        fresh, again = _twice(bench)
        runs += [fresh, again]
        found = _most_cached(fresh)
    verdict = bench.margin(*runs)
    if found >= page:
        says = f"{found:,} tokens of a new session came from the cache"
        return Answer(Status.FAIL, says, "cached tokens of each answer", "its first page was new, so nothing could")
    says, proof = verdict.describe(), "the same tokens scored in one prefill"
    if not verdict.passed:
        return Answer(Status.FAIL, says, proof, "a session's answer follows another session's tokens")
    unseen = _why_unseen(bench, fresh, again, page)
    return Answer(Status.UNPROVEN if unseen else Status.PASS, says, proof, unseen)


def _twice(bench: Bench) -> tuple[Run, Run]:
    """New sessions, and the same again."""
    prompts = bench.prompts(SESSIONS, "routing/sessions-do-not-leak")
    return bench.run(prompts, concurrency=CONCURRENCY), bench.run(prompts, concurrency=CONCURRENCY)


def _most_cached(run: Run) -> int:
    """Of one prompt, as the answers tell."""
    return max(one.decoded.cached_tokens or 0 for one in run.sequences)


def _why_unseen(bench: Bench, fresh: Run, again: Run, page_tokens: int) -> str:
    """Why it is not known that the new sessions found no page in the cache, and the repeated ones did: one for every
    other session at least. Empty where it is. Without a report in the answers counters tell it, of others' too."""
    if bench.engine.prefix_cache is False:
        return "prefix caching is switched off: nothing is kept that could leak"
    if fresh.cached_tokens is None or again.cached_tokens is None:
        return "the server does not say how much of a prompt came from its cache"
    reported = any(one.decoded.cached_tokens is not None for one in fresh.sequences)
    if not reported and fresh.cached_tokens >= page_tokens:
        return f"a count of {fresh.cached_tokens:,.0f} cached tokens may be others'; switch the cache report on"
    least = len(again.sequences) // 2 * page_tokens
    if (more := again.cached_tokens - fresh.cached_tokens) >= least:
        return ""
    return f"{max(more, 0):,.0f} tokens of the repeated sessions came from the cache, {least:,} are the least to judge"


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
