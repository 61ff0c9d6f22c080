"""What is remembered of each request, and what is counted of all of them. Plain numbers: this is on the hot path."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

from optistack_routing.fleet.desk import Outcome
from optistack_routing.http.head import RequestHead
from optistack_routing.policy.base import Choice, Request, Usage

TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
DURATION_S = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class Histogram:
    """Counts by upper bound, the last one for what is above them all."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Record:
    """One request, from its last byte in to its last byte out."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "choice",
        "faults",
        "method",
        "request",
        "started_s",
        "status",
        "target",
        "tries",
        "ttft_s",
    )

    def __init__(self, head: RequestHead, request: Request, bytes_in: int) -> None:
        self.started_s = monotonic()
        self.method = head.method
        self.target = head.target
        self.request = request
        self.bytes_in = bytes_in
        self.bytes_out = 0
        self.status = 0
        self.tries = 0
        self.choice: Choice | None = None
        self.faults: list[tuple[str, Outcome]] = []
        self.ttft_s: float | None = None


@dataclass
class Recorder:
    """The counters of one router process. ``written`` gets each finished request as a line of the access log."""

    ready: Callable[[], bool] = lambda: True
    written: Callable[[dict[str, Any]], None] | None = None
    connections: int = 0
    in_flight: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    refusals: Counter[int] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_S))
    gaps: Histogram = field(default_factory=lambda: Histogram(GAP_S))
    durations: Histogram = field(default_factory=lambda: Histogram(DURATION_S))

    def begin(self, head: RequestHead, request: Request, bytes_in: int) -> Record:
        self.in_flight += 1
        return Record(head, request, bytes_in)

    def refused(self, status: int) -> None:
        self.refusals[status] += 1

    def placed(self, record: Record, choice: Choice) -> None:
        record.tries += 1
        record.choice = choice
        self.reasons[choice.reason] += 1

    def failed(self, record: Record, outcome: Outcome, *, again: bool) -> None:
        """A try has failed; ``again`` when the request is sent somewhere else."""
        if record.choice is not None:
            record.faults.append((record.choice.replica, outcome))
        if again:
            self.retries[outcome] += 1

    def first_byte(self, record: Record, now_s: float) -> None:
        record.ttft_s = now_s - record.started_s
        self.ttft.observe(record.ttft_s)

    def end(self, record: Record, outcome: Outcome, usage: Usage | None) -> None:
        self.in_flight -= 1
        took_s = monotonic() - record.started_s
        self.durations.observe(took_s)
        self.answers[record.status] += 1
        self.outcomes[outcome] += 1
        sums = self.sums
        sums["bytes_in"] += record.bytes_in
        sums["bytes_out"] += record.bytes_out
        if usage is not None and record.choice is not None:
            sums["prompt_tokens"] += usage.prompt_tokens or 0
            sums["output_tokens"] += usage.output_tokens or 0
            if usage.cached_tokens is not None:
                sums["cached_tokens"] += usage.cached_tokens
                sums["predicted_cached_tokens"] += record.choice.predicted_cached_tokens
                sums["compared_prompt_tokens"] += usage.prompt_tokens or 0
        if self.written is not None:
            self.written(_line(record, outcome, usage, took_s))


def _line(record: Record, outcome: Outcome, usage: Usage | None, took_s: float) -> dict[str, Any]:
    choice = record.choice
    line: dict[str, Any] = {
        "time": round(time(), 3),
        "method": record.method.decode(),
        "path": record.target.split(b"?", 1)[0].decode("latin-1"),
        "status": record.status,
        "outcome": outcome,
        "session": record.request.session,
        "replica": choice.replica if choice else None,
        "reason": choice.reason if choice else None,
        "tries": record.tries,
        "ttft_s": None if record.ttft_s is None else round(record.ttft_s, 4),
        "duration_s": round(took_s, 4),
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "predicted_cached_tokens": choice.predicted_cached_tokens if choice else None,
    }
    if record.faults:
        line["faults"] = [{"replica": replica, "outcome": fault} for replica, fault in record.faults]
    if usage is not None:
        line["prompt_tokens"], line["cached_tokens"] = usage.prompt_tokens, usage.cached_tokens
        line["output_tokens"] = usage.output_tokens
    return line
