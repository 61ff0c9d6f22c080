"""From the records of a repeat to its figures. A request that failed is counted, and is in no latency or speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from optistack_bench.counters import HIT_TIERS, Counts
from optistack_bench.load import Played
from optistack_bench.records import Record
from optistack_bench.result import Repeat, SessionHits
from optistack_bench.statistics import TAILS, quantile

BUCKETS = ((32, "under 32"), (128, "32 to 127"), (512, "128 to 511"))
LAST_BUCKET = "512 and more"
AGREE_SHARE = 0.02
"""Cached tokens by usage and by the engine's counters agree within this share of the prompts' tokens, and so do the
tokens of those prompts."""


def summarize(
    played: Played,
    counts: Counts,
    gauges: Sequence[dict[str, float]],
    *,
    gpus: int,
    spare_tokens: int = 0,
    exact: bool = False,
) -> Repeat:
    """``gauges`` are readings taken while it ran; ``gpus`` divides what is a GPU's; ``spare_tokens`` of a first prompt
    may be cached without being a sign of an earlier run; ``exact`` says that answers end at the asked length."""
    good = [record for record in played.records if not record.error]
    figures = {
        **latencies(good),
        **_throughput(good, played, gpus),
        **_cache(good, played, counts, spare_tokens),
        **_gauges(gauges),
    }
    if counts.acceptance_length is not None:
        figures["acceptance_length"] = counts.acceptance_length
    queued = counts.get("queued_requests")
    if queued:
        figures["queue_s_mean"] = (counts.get("queue_s") or 0.0) / queued
    if (preemptions := counts.get("preemptions")) is not None:
        figures["preemptions"] = preemptions
    errors = Counter(record.error for record in played.records if record.error)
    figures |= {"requests": float(len(played.records)), "errors": float(sum(errors.values())), "wall_s": played.wall_s}
    if good:
        figures["prompt_tokens_mean"] = fmean(record.prompt_tokens for record in good)
        figures["output_tokens_mean"] = fmean(record.output_tokens for record in good)
        figures |= _contradictions(good, exact)
    figures |= _quantiles("connect_s", [one.connect_s for one in good if one.connect_s is not None])
    return Repeat(
        figures=figures,
        by_domain=_groups(good, lambda record: record.domain),
        by_output=_groups(good, lambda record: bucket(record.output_tokens)),
        sessions=session_hits(good),
        errors=dict(errors),
        first_error=next((f"{one.error}: {one.detail}" for one in played.records if one.error), ""),
        counters=counts.values,
        ended=played.ended,
    )


def _contradictions(good: Sequence[Record], exact: bool) -> dict[str, float]:
    """Answers whose usage is missing, or cannot be true of what was sent and asked for."""
    counted = [record for record in good if record.counted]
    prompts = [one for one in counted if one.sent_tokens is not None and one.prompt_tokens != one.sent_tokens]
    above = [one for one in counted if one.output_tokens > one.asked_tokens]
    below = [one for one in counted if exact and one.output_tokens < one.asked_tokens]
    return {
        "without_usage": float(len(good) - len(counted)),
        "other_prompt": float(len(prompts)),
        "other_length": float(len(above) + len(below)),
    }


def bucket(tokens: int) -> str:
    return next((name for below, name in BUCKETS if tokens < below), LAST_BUCKET)


def latencies(good: Sequence[Record]) -> dict[str, float]:
    """Quantiles of TTFT, of the gaps between chunks, of latency, and of the speed that a user sees."""
    speeds = [speed for record in good if (speed := record.tokens_per_s) is not None]
    gaps = [gap for record in good for gap in record.gaps_s]
    figures = {
        **_quantiles("ttft_s", [record.ttft_s for record in good]),
        **_quantiles("itl_s", gaps),
        **_quantiles("latency_s", [record.latency_s for record in good]),
    }
    if speeds:
        # The slow end is what a promise is about: the 5th percentile is the speed that 95% of requests exceed.
        figures |= {"user_tokens_s_p50": quantile(speeds, 0.5), "user_tokens_s_p5": quantile(speeds, 0.05)}
    reads = [record.prompt_tokens / record.ttft_s for record in good if record.ttft_s > 0]
    if reads:
        figures["prefill_tokens_s_p50"] = quantile(reads, 0.5)
    if gaps:
        figures["tokens_a_chunk"] = sum(record.output_tokens for record in good) / (len(gaps) + len(good))
    return figures


def _quantiles(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    found = {f"{name}_{key}": quantile(values, at) for key, at in {"p50": 0.5, **TAILS}.items()}
    return {f"{name}_n": float(len(values)), f"{name}_mean": fmean(values), **found}


def _throughput(good: Sequence[Record], played: Played, gpus: int) -> dict[str, float]:
    """Tokens while every user had work: a prompt counts when its first token is out, an answer as its chunks come."""
    window_s = played.full_s
    if window_s <= 0:
        return {}
    prompt = output = done = 0.0
    latency_s = 0.0
    for record in good:
        if record.first_s is not None and record.first_s <= window_s:
            prompt += record.prompt_tokens
            output += record.output_tokens * _share_before(record, window_s)
        if record.end_s <= window_s:
            done += 1
            latency_s += record.latency_s
    minutes = window_s / 60
    figures = {
        "window_s": window_s,
        "total_tokens_min_gpu": (prompt + output) / minutes / gpus,
        "output_tokens_min_gpu": output / minutes / gpus,
        "requests_min": done / minutes,
        "in_flight": played.active_s / window_s,
    }
    if played.active_s > 0 and not played.ended:
        # Little's law: requests in flight are throughput times latency. Both sides are measured apart. What a server
        # took with it was in flight and has no latency.
        figures["little"] = latency_s / played.active_s
    return figures


def _share_before(record: Record, until_s: float) -> float:
    """Of the record's chunks, those that had come by then."""
    assert record.first_s is not None
    if record.end_s <= until_s:
        return 1.0
    at_s, come = record.first_s, 1
    for gap_s in record.gaps_s:
        at_s += gap_s
        if at_s > until_s:
            break
        come += 1
    return come / (1 + len(record.gaps_s))


def _cache(good: Sequence[Record], played: Played, counts: Counts, spare_tokens: int) -> dict[str, float]:
    """Hit rates: of prompt tokens by usage, by the engine's counters, and what the workload allows at best."""
    figures: dict[str, float] = {}
    prompt = sum(record.prompt_tokens for record in good)
    if not prompt:
        return figures
    figures["hit_rate_possible"] = sum(record.reusable_tokens for record in good) / sum(
        record.possible_of_tokens for record in good
    )
    said = [record.cached_tokens for record in good if record.cached_tokens is not None]
    if said:
        figures["hit_rate_usage"] = sum(said) / prompt
    asked = counts.get("asked_tokens")
    if asked and counts.hit_tokens is not None:
        # More hits than tokens that were looked up is no rate, whatever is counted there.
        if counts.hit_tokens <= asked:
            figures["hit_rate_engine"] = counts.hit_tokens / asked
            for tier in HIT_TIERS:
                if (value := counts.get(tier)) is not None:
                    figures[f"hit_rate_{tier.removesuffix('_hit_tokens')}"] = value / asked
        # The engine may have counted the prompts of requests that failed, or not.
        expected = min(max(asked, prompt), sum(record.prompt_tokens for record in played.records))
        figures["prompts_by_engine"] = asked / expected
        if said:
            apart = max(abs(counts.hit_tokens - sum(said)), abs(asked - expected))
            figures["hits_agree"] = float(apart <= AGREE_SHARE * prompt)
    above = [record for record in good if (record.cached_tokens or 0) > record.prompt_tokens]
    figures["cached_above_prompt"] = float(len(above))
    first = [record for record in good if not record.reusable_tokens and (record.cached_tokens or 0) > spare_tokens]
    figures["foreign_hits"] = float(sum(record.cached_tokens or 0 for record in first))
    return figures


def _gauges(readings: Sequence[dict[str, float]]) -> dict[str, float]:
    names = {name for reading in readings for name in reading}
    means = {name: fmean(reading[name] for reading in readings if name in reading) for name in names}
    figures = {f"engine_{name}": value for name, value in means.items() if name != "accept_length"}
    if means.get("accept_length"):
        figures["acceptance_length"] = means["accept_length"]
    return figures


def _groups(good: Sequence[Record], key: Callable[[Record], str]) -> dict[str, dict[str, float]]:
    groups: dict[str, list[Record]] = {}
    for record in good:
        groups.setdefault(key(record), []).append(record)
    return {name: {"requests": float(len(ones)), **latencies(ones)} for name, ones in sorted(groups.items())}


def session_hits(good: Sequence[Record]) -> tuple[SessionHits, ...]:
    """Each session's hits beside the reuse that it allows, the most hostile to a cache first."""
    sessions: dict[str, list[Record]] = {}
    for record in good:
        sessions.setdefault(record.session, []).append(record)
    found = []
    for name, ones in sessions.items():
        cached: list[Any] = [one.cached_tokens for one in ones]
        found.append(
            SessionHits(
                name=name,
                requests=len(ones),
                prompt_tokens=sum(one.possible_of_tokens for one in ones),
                reusable_tokens=sum(one.reusable_tokens for one in ones),
                cached_tokens=None if None in cached else sum(cached),
            )
        )
    return tuple(sorted(found, key=lambda one: one.reusable_tokens / one.prompt_tokens))
