"""What has to be said beside a point's figures, so that they are not taken for what they are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from optistack_bench.result import SHORT_WINDOW_S, Point
from optistack_bench.statistics import TAILS, values_needed
from optistack_bench.summary import AGREE_SHARE

LITTLE_TOLERANCE = 0.1
BUSY_GENERATOR = 0.8
HOSTILE_SHARE = 0.9


def notes(point: Point) -> Iterator[str]:
    """Sentences, each with the point's name."""
    where = f"{point.target}, {point.load}"
    repeats = point.measured
    errors: Counter[str] = Counter()
    for repeat in point.repeats:
        errors.update(repeat.errors)
        if repeat.ended:
            yield f"{where}: PARTIAL, a repeat was broken off. {repeat.ended}"
    if errors:
        first = next(repeat.first_error for repeat in point.repeats if repeat.first_error)
        kinds = ", ".join(f"{count} x {kind}" for kind, count in errors.items())
        yield f"{where}: {sum(errors.values())} requests failed ({kinds}) and are in no latency. The first: {first}"
    yield from _counts(where, point)
    yield from _tails(where, point)
    yield from short_windows(point.target, [point])
    little = point.mean("little")
    if little is not None:
        verdict = "holds" if abs(little - 1) <= LITTLE_TOLERANCE else "does NOT hold: too short, or not steady"
        yield f"{where}: throughput times latency is {little:.2f} of the requests in flight, so Little's law {verdict}."
    yield from _hits(where, point)
    if (busy := point.mean("generator_cpu")) is not None:
        warn = " It may have been what limits: spread the load." if busy > BUSY_GENERATOR else ""
        yield f"{where}: the load generator took {busy:.0%} of a core.{warn}"
    if len(repeats) == 1:
        yield f"{where}: one repeat, so there is no interval."


def _counts(where: str, point: Point) -> Iterator[str]:
    """What the server's usage does not say, or cannot mean, and what is in no TTFT."""
    if without := _total(point, "without_usage"):
        yield (
            f"{where}: of {_total(point, 'ttft_s_n'):,.0f} answers {without:,.0f} came without usage: their prompts "
            "are counted as they were sent, their tokens as chunks, and their hits not at all."
        )
    answers = f"{where}: of {_total(point, 'ttft_s_n'):,.0f} answers"
    if other := _total(point, "other_prompt"):
        yield (
            f"{answers} {other:,.0f} count another number of prompt tokens than were sent: tokens/min and hits by "
            "usage are not to be trusted."
        )
    if other := _total(point, "other_length"):
        yield (
            f"{answers} {other:,.0f} count another number of tokens than were asked for: tokens/s/user and tokens/min "
            "are not to be trusted."
        )
    if above := _total(point, "cached_above_prompt"):
        yield (
            f"{where}: of {_total(point, 'ttft_s_n'):,.0f} answers {above:,.0f} claim more cached tokens than their "
            "prompt has: hits by usage are not to be trusted."
        )
    if (connect_s := point.mean("connect_s_p50")) is not None:
        opened = f"{_total(point, 'connect_s_n'):,.0f} of {_total(point, 'ttft_s_n'):,.0f} requests"
        yield f"{where}: {opened} opened a connection, in {1000 * connect_s:.2g} ms (p50), which is in no TTFT."


def _total(point: Point, figure: str) -> float:
    """Over the repeats that count."""
    return sum(repeat.figures.get(figure, 0.0) for repeat in point.measured)


def _tails(where: str, point: Point) -> Iterator[str]:
    for name, what in (("ttft_s", "TTFT and latency"), ("itl_s", "ITL")):
        n = point.values(name)
        few = [key for key, share in TAILS.items() if n < values_needed(share)]
        if few and point.mean(f"{name}_p99") is not None:
            needed = " and ".join(f"{values_needed(TAILS[key])} for {key}" for key in few)
            yield (
                f"{where}: {what} of {n:,.0f} values a repeat, and it takes {needed}: "
                f"{' and '.join(few)} {'are' if len(few) > 1 else 'is'} nearly the largest value."
            )


def short_windows(where: str, points: Iterable[Point]) -> Iterator[str]:
    """Those of ``points`` of which a repeat counted too short a time, in one sentence."""
    short = [f"{point.load} ({point.window_s:.2g} s)" for point in points if point.too_short]
    if short:
        yield (
            f"{where}: TOO SHORT to conclude from: {', '.join(short)}; a repeat has to count for {SHORT_WINDOW_S:g} s. "
            "Give --min-seconds 10 or more, or at a rate more --sessions."
        )


def seen_before(where: str, point: Point) -> Iterator[str]:
    """That the point's server had KV of the workload from an earlier run."""
    if point.mean("foreign_hits"):
        yield (
            f"{where}: {point.mean('foreign_hits'):,.0f} tokens of first prompts were cached before they were sent: "
            "the server has seen this workload. Start it anew, or give another --seed."
        )


def _hits(where: str, point: Point) -> Iterator[str]:
    usage, engine = point.mean("hit_rate_usage"), point.mean("hit_rate_engine")
    possible = point.mean("hit_rate_possible")
    if (times := point.mean("prompts_by_engine")) is not None and abs(times - 1) > AGREE_SHARE:
        yield (
            f"{where}: the engine's counters have {times:.3g} times the prompt tokens of the requests, so that hits by "
            "them are not to be trusted: prompts are counted again, or others asked it too."
        )
    if usage is None and engine is None:
        yield f"{where}: neither usage nor the engine's counters tell cache hits."
    elif engine is None and any(repeat.figures.get("hits_agree") == 0.0 for repeat in point.measured):
        yield f"{where}: the engine's counters have more hits than prompt tokens; hits are by usage."
    elif usage is not None and engine is not None:
        agree = all(repeat.figures.get("hits_agree", 1.0) for repeat in point.measured)
        tiers = ", ".join(
            f"{tier} {value:.1%}"
            for tier in ("device", "host", "storage")
            if (value := point.mean(f"hit_rate_{tier}")) is not None
        )
        word = "agree" if agree else "DISAGREE"
        yield f"{where}: hits by usage {usage:.1%} and by the engine's counters {engine:.1%} ({tiers}) {word}."
    if possible is not None and point.measured:
        sessions = point.measured[0].sessions
        if sessions and sessions[0].reusable_tokens < HOSTILE_SHARE * sessions[0].prompt_tokens:
            worst = sessions[0]
            got = (
                "" if worst.cached_tokens is None else f", of which {worst.cached_tokens / worst.prompt_tokens:.1%} hit"
            )
            allowed = worst.reusable_tokens / worst.prompt_tokens
            yield (
                f"{where}: the workload allows {possible:.1%} hits at best; its worst session, {worst.name}, "
                f"{allowed:.1%}{got}."
            )
    yield from seen_before(where, point)
