"""Figures: quantiles, intervals, the frontier and its knee, and what failed requests must not change."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from optistack.verify.metrics import parse_metrics
from optistack_bench.compare import compare
from optistack_bench.counters import Counts, between, read_gauges, read_totals
from optistack_bench.load import Played
from optistack_bench.notes import notes
from optistack_bench.pareto import best_at, conclusions, frontier, knee, spots
from optistack_bench.records import Record
from optistack_bench.result import Point, Repeat, Result, Server, WorkloadFacts
from optistack_bench.statistics import Estimate, difference, quantile, values_needed
from optistack_bench.summary import bucket, summarize

SERVER = Server(url="http://x", model="m")
WORK = WorkloadFacts(
    name="w", digest="d", rules=(), sessions=64, requests=1, longest_tokens=1, divide=1, reusable_share=0.0
)


def point(users: int, speed: float, throughput: float, target: str = "t") -> Point:
    figures = {"user_tokens_s_p50": speed, "total_tokens_min_gpu": throughput}
    return Point(target=target, users=users, server=SERVER, workload=WORK, repeats=(Repeat(figures=figures),))


def whole(*points: Point, **more: Any) -> Result:
    return Result(
        optistack_version="", made_at="", machine="", settings={"max_errors": 0.01}, state="complete", points=points,
        **more,
    )  # fmt: skip


def record(
    start_s: float = 0.0, *, error: str = "", gaps: int = 4, gap_s: float = 0.1, cached: int | None = 50
) -> Record:
    first_s = None if error else start_s + 1.0
    end_s = start_s + 1.0 + gaps * gap_s
    return Record(
        session="s",
        domain="code",
        turn=0,
        start_s=start_s,
        end_s=end_s,
        first_s=first_s,
        think_s=0.0,
        prompt_tokens=100,
        output_tokens=gaps + 1,
        asked_tokens=gaps + 1,
        cached_tokens=cached,
        reusable_tokens=60,
        error=error,
        gaps_s=[] if error else [gap_s] * gaps,
    )


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_quantiles_are_the_inclusive_ones(values: list[float]) -> None:
    expected = statistics.quantiles(values, n=20, method="inclusive")
    for at, value in enumerate(expected, start=1):
        assert math.isclose(quantile(values, at / 20), value, rel_tol=1e-9, abs_tol=1e-6)


def test_intervals_are_students_and_welchs() -> None:
    before, after = Estimate((10.0, 11.0, 12.5)), Estimate((14.0, 15.5, 15.0, 17.0))
    low, high = stats.t.interval(0.95, 2, loc=before.mean, scale=stats.sem(before.values))
    assert before.half_width == pytest.approx((high - low) / 2, rel=1e-3)
    change, half = difference(before, after)
    welch = stats.ttest_ind(after.values, before.values, equal_var=False).confidence_interval(0.95)
    assert change == pytest.approx((welch.low + welch.high) / 2)
    # Degrees of freedom are rounded down, so the interval is a little wider.
    assert half is not None and (welch.high - welch.low) / 2 <= half <= 1.2 * (welch.high - welch.low) / 2
    assert Estimate((1.0,)).half_width is None


def test_the_knee_is_where_more_users_begin_to_cost_more_than_they_bring() -> None:
    points = [point(1, 100, 1000), point(2, 95, 1900), point(4, 85, 3400), point(8, 40, 3800), point(16, 15, 3900)]
    found = knee(spots(points))
    assert found is not None and found.point.users == 4
    best = best_at(spots(points), 90)
    assert best is not None and best.point.users == 2
    assert best_at(spots(points), 200) is None
    said = conclusions(whole(*points), 200)
    assert "knee is at 4 users" in said[0] and "nothing was measured" in said[1]


def flawed(one: Point, **update: Any) -> Point:
    return one.model_copy(update={"repeats": (one.repeats[0].model_copy(update=update),)})


def test_what_is_partial_or_failed_is_neither_recommended_nor_the_knee() -> None:
    failed = {**point(8, 90, 9000).repeats[0].figures, "requests": 100.0, "errors": 2.0}
    points = [
        point(1, 100, 1000),
        point(2, 95, 1900),
        flawed(point(8, 90, 9000), figures=failed, errors={"HTTP 500": 2}),
        flawed(point(4, 85, 8000), ended="The server is gone."),
    ]
    said = conclusions(whole(*points, loads={"t": ("1 user", "16 users"), "u": ("1 user",)}), 50)
    assert said == [
        "t: no knee in these loads.",
        "t: at 50 tokens/s/user or more, 2 users are best, 95.0 tokens/s/user and 1,900 tokens/min/GPU.",
        "t: left out: 8 users (2.0% of a repeat's requests failed); 4 users (partial); 16 users (not measured).",
        "u: left out: 1 user (not measured).",
    ]
    assert conclusions(whole(point(100, 85, 8000)), 50)[1:] == [
        "t: left out: 100 users (never reached with 64 sessions)."
    ]
    figures = {**failed, "errors": 1.0}
    allowed = flawed(point(8, 90, 9000), figures=figures, errors={"HTTP 500": 1})
    assert conclusions(whole(allowed), 50) == [
        "t: at 50 tokens/s/user or more, 8 users are best, 90.0 tokens/s/user and 9,000 tokens/min/GPU "
        "(1 of its requests failed)."
    ]


def test_a_line_and_two_points_have_no_knee() -> None:
    assert knee(spots([point(1, 3, 1), point(2, 2, 2), point(4, 1, 3)])) is None
    assert knee(spots([point(1, 3, 1), point(2, 1, 3)])) is None


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=20))
def test_nothing_is_better_in_both_than_the_frontier(pairs: list[tuple[int, int]]) -> None:
    given = spots([point(at + 1, *pair) for at, pair in enumerate(pairs)])
    best = frontier(given)
    for spot in given:
        assert any(one.speed >= spot.speed and one.throughput >= spot.throughput for one in best)
    for one in best:
        assert not any(
            (two.speed > one.speed and two.throughput >= one.throughput)
            or (two.speed >= one.speed and two.throughput > one.throughput)
            for two in given
        )


def test_failed_requests_are_counted_and_change_no_latency() -> None:
    good = [record(0.0), record(0.5)]
    bad = [record(0.2, error="HTTP 500"), record(0.3, error="HTTP 500"), record(0.4, error="cut off")]
    window = {"wall_s": 2.0, "full_s": 2.0, "active_s": 2.8}
    clean = summarize(Played(good, **window), Counts({}), [], gpus=1)
    dirty = summarize(Played([*bad, *good], **window), Counts({}), [], gpus=1)
    assert dirty.errors == {"HTTP 500": 2, "cut off": 1}
    counted = {"requests", "errors"}
    assert {k: v for k, v in dirty.figures.items() if k not in counted} == {
        k: v for k, v in clean.figures.items() if k not in counted
    }
    assert (dirty.figures["errors"], clean.figures["errors"]) == (3, 0)
    assert clean.figures["little"] == pytest.approx(1.0)
    assert clean.figures["user_tokens_s_p50"] == pytest.approx(10.0)
    assert clean.figures["total_tokens_min_gpu"] == pytest.approx(210 * 30)


def test_a_tail_is_judged_where_five_values_lie_beyond_it() -> None:
    assert [values_needed(share) for share in (0.95, 0.99)] == [100, 500]

    def measured(n: int, p99: float) -> Point:
        repeats = tuple(
            Repeat(figures={"ttft_s_p95": p99, "ttft_s_p99": p99, "ttft_s_n": float(n), "requests": 1.0 * n})
            for _ in range(2)
        )
        return Point(target="t", users=1, server=SERVER, workload=WORK, repeats=repeats)

    def verdicts(n: int) -> list[str]:
        before, after = (
            Result(optistack_version="", made_at="", machine="", settings={}, points=(measured(n, value),))
            for value in (1.0, 2.0)
        )
        return [change.verdict for change in compare(before, after)]

    assert verdicts(99) == ["too few", "too few"]
    assert verdicts(100) == verdicts(499) == ["worse", "too few"]
    assert verdicts(500) == ["worse", "worse"]
    said = " ".join(notes(measured(499, 1.0)))
    assert "TTFT and latency of 499 values a repeat, and it takes 500 for p99: p99 is nearly the largest value" in said
    assert "nearly the largest" not in " ".join(notes(measured(500, 1.0)))


def test_what_comes_after_the_load_fell_off_is_no_throughput() -> None:
    played = Played([record(0.0), record(10.0)], wall_s=12.0, full_s=1.25, active_s=1.25)
    figures = summarize(played, Counts({}), [], gpus=2).figures
    assert figures["output_tokens_min_gpu"] == pytest.approx(3 / 1.25 * 60 / 2)


def test_hits_by_usage_and_by_counters_agree_or_not() -> None:
    played = Played([record()], wall_s=2.0, full_s=2.0, active_s=1.4)
    counts = {"asked_tokens": 100.0, "device_hit_tokens": 40.0, "host_hit_tokens": 10.0}
    figures = summarize(played, Counts(counts), [], gpus=1).figures
    assert (figures["hit_rate_usage"], figures["hit_rate_engine"], figures["hits_agree"]) == (0.5, 0.5, 1.0)
    assert (figures["hit_rate_device"], figures["hit_rate_host"], figures["hit_rate_possible"]) == (0.4, 0.1, 0.6)
    figures = summarize(played, Counts({**counts, "host_hit_tokens": 0.0}), [], gpus=1).figures
    assert figures["hits_agree"] == 0.0


def said_of(repeat: Repeat) -> str:
    return "\n".join(notes(Point(target="t", users=1, server=SERVER, workload=WORK, repeats=(repeat,))))


def test_hits_that_are_counted_again_are_no_rate() -> None:
    """As vLLM counts them at each attempt to schedule a request whose KV is being loaded from a tier."""
    played = Played([record(), record()], wall_s=2.0, full_s=2.0, active_s=2.8)
    again = summarize(played, Counts({"asked_tokens": 400.0, "device_hit_tokens": 100.0}), [], gpus=1)
    assert (again.figures["hits_agree"], again.figures["prompts_by_engine"]) == (0.0, 2.0)
    assert "2 times the prompt tokens of the requests" in said_of(again) and "DISAGREE" in said_of(again)
    above = summarize(played, Counts({"asked_tokens": 200.0, "device_hit_tokens": 360.0}), [], gpus=1)
    assert not {"hit_rate_engine", "hit_rate_device"} & set(above.figures)
    assert above.figures["hits_agree"] == 0.0 and "more hits than prompt tokens" in said_of(above)
    failed = Played([*played.records, record(error="cut off")], wall_s=2.0, full_s=2.0, active_s=2.8)
    for counted in (200.0, 300.0):
        figures = summarize(failed, Counts({"asked_tokens": counted, "device_hit_tokens": 100.0}), [], gpus=1).figures
        assert figures["hits_agree"] == 1.0


def test_vllm_counts_each_prompt_once_by_source() -> None:
    sources = {"local_compute": 10, "local_cache_hit": 60, "external_kv_transfer": 30}
    page = "".join(f'vllm:prompt_tokens_by_source_total{{source="{name}"}} {at}\n' for name, at in sources.items())
    page += "vllm:prefix_cache_queries_total 170\nvllm:prefix_cache_hits_total 150\n"
    counts = between({}, read_totals([parse_metrics(page + "vllm:external_prefix_cache_hits_total 50\n")]))
    assert (counts.get("asked_tokens"), counts.get("device_hit_tokens"), counts.get("host_hit_tokens")) == (100, 60, 30)


def test_counters_of_both_engines() -> None:
    vllm = parse_metrics(
        "vllm:prefix_cache_queries_total 100\nvllm:prefix_cache_hits_total 60\nvllm:spec_decode_num_drafts_total 10\n"
        "vllm:spec_decode_num_accepted_tokens_total 15\nvllm:num_requests_waiting 3\n"
    )
    counts = between({"asked_tokens": 50.0}, read_totals([vllm, vllm]))
    assert (counts.get("asked_tokens"), counts.hit_tokens, counts.acceptance_length) == (150, 120, 2.5)
    assert read_gauges([vllm, vllm])["waiting"] == 6
    sglang = parse_metrics(
        'sglang:prompt_tokens_total 100\nsglang:cached_tokens_total{cache_source="device"} 50\n'
        'sglang:cached_tokens_total{cache_source="host"} 20\nsglang:spec_accept_length 2.5\n'
    )
    assert between({}, read_totals([sglang])).hit_tokens == 70
    assert read_gauges([sglang])["accept_length"] == 2.5


def test_engines_that_share_a_port_are_as_full_as_they_are_in_the_mean() -> None:
    names = ("kv_cache_usage_perc", "num_requests_running")
    page = "".join(f'vllm:{name}{{engine="{at}"}} {at + 0.25}\n' for name in names for at in range(2))
    found = read_gauges([parse_metrics(page)])
    assert (found["kv_usage"], found["running"]) == (0.75, 1.5)


def test_what_an_engine_counts_as_no_number_is_left_out() -> None:
    page = parse_metrics("vllm:num_requests_waiting NaN\nvllm:num_preemptions_total +Inf\n")
    assert (read_totals([page]), read_gauges([page])) == ({}, {})


def test_a_counter_that_fell_is_left_out() -> None:
    assert between({"drafts": 10.0}, {"drafts": 3.0}).values == {}


def test_a_reading_that_failed_is_not_one_of_zeros() -> None:
    assert between(None, {"drafts": 10.0}).values == between({"drafts": 10.0}, None).values == {}


def test_buckets_of_answers() -> None:
    assert [bucket(tokens) for tokens in (1, 31, 32, 128, 512)] == [
        "under 32", "under 32", "32 to 127", "128 to 511", "512 and more",
    ]  # fmt: skip
