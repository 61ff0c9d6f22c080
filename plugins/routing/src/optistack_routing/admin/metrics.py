"""The state in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from optistack_routing.admin.state import HISTOGRAMS

PREFIX = "optistack_route_"

_GAUGES = (
    ("in_flight", "Requests that hold a place on a replica."),
    ("waiting", "Requests that wait for a replica."),
)
_COUNTERS = (
    ("answers", "answers", "status", "Requests that were routed, by the status that the client got; 499: it left."),
    ("refusals", "refusals", "status", "Requests that the router answered itself with an error."),
    ("outcomes", "outcomes", "outcome", "How routed requests ended."),
    ("retries", "retries", "cause", "Requests sent to another replica, by what went wrong on the one before."),
    ("reasons", "placements", "reason", "Decisions, by why that replica: splits and migrations are among them."),
)
_SUMS = (
    ("bytes_in", "request_bytes", "Bytes of request bodies."),
    ("bytes_out", "response_bytes", "Bytes of response bodies, as framed on the wire."),
    ("prompt_tokens", "prompt_tokens", "Prompt tokens, as the answers say."),
    ("output_tokens", "output_tokens", "Output tokens, as the answers say."),
    ("cached_tokens", "cached_tokens", "Prompt tokens from a prefix cache, as the answers say."),
    ("predicted_cached_tokens", "predicted_cached_tokens", "The policy's belief, over the same answers."),
    ("compared_prompt_tokens", "compared_prompt_tokens", "Prompt tokens of the answers that say what was cached."),
)
_TIMES = {
    "ttft": ("ttft_seconds", "From a request's last byte in to the first byte of its answer's body."),
    "gaps": ("chunk_gap_seconds", "Between two pieces of an answer."),
    "durations": ("request_seconds", "From a request's last byte in to its answer's last byte."),
}


class Exposition:
    """``read`` gives the state when Prometheus asks; nothing is kept twice."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        now = self._read()
        for name, help_ in _GAUGES:
            yield GaugeMetricFamily(PREFIX + name, help_, value=now[name])
        yield GaugeMetricFamily(PREFIX + "connections", "Connections of clients.", value=now["counted"]["connections"])
        for name, value in now["load"].items():
            yield GaugeMetricFamily(
                f"{PREFIX}load_{name}", "Requests in flight over the replicas that accept some.", value=value
            )
        yield from self._replicas(now["replicas"])
        homes = GaugeMetricFamily(
            PREFIX + "sessions", "Sessions, by how many replicas hold their KV.", labels=["homes"]
        )
        for count, sessions in now["sessions"]["by_homes"].items():
            homes.add_metric([count], sessions)
        yield homes
        yield from self._counted(now["counted"])
        if now.get("precise") is not None:
            yield from _precise(now["precise"])

    def _replicas(self, replicas: list[dict[str, Any]]) -> Iterator[Metric]:
        gauges = {
            "in_flight": "Requests on the replica.",
            "pending_prefill_tokens": "Uncached prompt tokens of requests without a first byte.",
            "kv_utilisation": "Share of its KV pool in use, as last read.",
            "accepts": "1 when it may be given requests.",
        }
        for field, help_ in gauges.items():
            gauge = GaugeMetricFamily(f"{PREFIX}replica_{field}", help_, labels=["replica"])
            for replica in replicas:
                if replica[field] is not None:
                    gauge.add_metric([replica["url"]], float(replica[field]))
            yield gauge
        states = GaugeMetricFamily(
            PREFIX + "replica_state", "1 for what it is.", labels=["replica", "health", "circuit"]
        )
        for replica in replicas:
            states.add_metric([replica["url"], replica["health"], replica["circuit"]], 1)
        yield states

    def _counted(self, counted: dict[str, Any]) -> Iterator[Metric]:
        for field, name, label, help_ in _COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, help_, labels=[label])
            for key, value in counted[field].items():
                counter.add_metric([key], value)
            yield counter
        for field, name, help_ in _SUMS:
            yield CounterMetricFamily(PREFIX + name, help_, value=counted["sums"].get(field, 0))
        for field, (name, help_) in _TIMES.items():
            yield _histogram(PREFIX + name, help_, counted[field], HISTOGRAMS[field])


def _precise(counted: dict[str, int]) -> Iterator[Metric]:
    predictions = CounterMetricFamily(
        PREFIX + "predictions",
        "Predictions from KV events: agreed with the engine's cached tokens within a page, said too much (over) or too "
        "little (under); or there was none, since the prompt could not be read (unread) or not in time (late).",
        labels=["result"],
    )
    for result in ("agreed", "over", "under", "unread", "late"):
        predictions.add_metric([result], counted[result])
    yield predictions
    yield GaugeMetricFamily(PREFIX + "kv_blocks", "KV blocks of all replicas, as published.", value=counted["blocks"])
    for name, help_ in (
        ("gaps", "KV events that were missing and asked for again."),
        ("restarts", "Streams of KV events that broke off."),
        ("blocks_unplaced", "Published blocks that continue none that is known."),
        ("blocks_of_other_size", "Published blocks of another size than the plan's pages."),
    ):
        yield CounterMetricFamily(f"{PREFIX}kv_{name}", help_, value=counted[name])


def _histogram(name: str, help_: str, counted: dict[str, Any], bounds: tuple[float, ...]) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, map(float, bounds)), "+Inf"), counted["counts"], strict=True):
        total += count
        buckets.append((bound, total))
    family = HistogramMetricFamily(name, help_)
    family.add_metric([], buckets, counted["sum"])
    return family
