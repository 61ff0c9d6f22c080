"""What an engine counts itself, between two readings of its metrics: cache hits by tier, drafts, queue.

Names as vLLM 0.26 to 0.33 and SGLang 0.5.17 to 0.5.23 have them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optistack.verify.endpoint import Endpoint
from optistack.verify.metrics import Metrics

TOTALS = {
    "prompt_tokens": (("vllm:prompt_tokens_total", {}), ("sglang:prompt_tokens_total", {})),
    "asked_tokens": (
        ("vllm:prompt_tokens_by_source_total", {}),
        ("vllm:prefix_cache_queries_total", {}),
        ("sglang:prompt_tokens_total", {}),
    ),
    "device_hit_tokens": (
        ("vllm:prompt_tokens_by_source_total", {"source": "local_cache_hit"}),
        ("vllm:prefix_cache_hits_total", {}),
        ("sglang:cached_tokens_total", {"cache_source": "device"}),
    ),
    "host_hit_tokens": (
        ("vllm:prompt_tokens_by_source_total", {"source": "external_kv_transfer"}),
        ("vllm:external_prefix_cache_hits_total", {}),
        ("sglang:cached_tokens_total", {"cache_source": "host"}),
    ),
    "storage_hit_tokens": (("sglang:cached_tokens_total", {"cache_source": "storage"}),),
    "drafts": (("vllm:spec_decode_num_drafts_total", {}),),
    "accepted_tokens": (("vllm:spec_decode_num_accepted_tokens_total", {}),),
    "preemptions": (("vllm:num_preemptions_total", {}), ("sglang:num_retracted_requests_total", {})),
    "queue_s": (("vllm:request_queue_time_seconds_sum", {}), ("sglang:queue_time_seconds_sum", {})),
    "queued_requests": (("vllm:request_queue_time_seconds_count", {}), ("sglang:queue_time_seconds_count", {})),
}
"""What is counted up, and what it is called; the first name that the engine has is taken. Of vLLM's, those by source
count a prompt once, when its first token is out. ``prefix_cache_*`` count it at each attempt to schedule it, so again
and again while its KV is loaded from a tier."""

GAUGES = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "sglang:token_usage"),
    "accept_length": ("sglang:spec_accept_length",),
}


@dataclass(frozen=True)
class Counts:
    """Counts between two readings, summed over all replicas; None for what no engine says."""

    values: dict[str, float]

    def get(self, name: str) -> float | None:
        return self.values.get(name)

    @property
    def hit_tokens(self) -> float | None:
        """From every tier; None where not even the device's are counted."""
        tiers = [self.values[key] for key in HIT_TIERS if key in self.values]
        return sum(tiers) if "device_hit_tokens" in self.values else None

    @property
    def acceptance_length(self) -> float | None:
        """Accepted draft tokens a step and the one that the target adds."""
        drafts = self.values.get("drafts")
        return 1 + self.values.get("accepted_tokens", 0.0) / drafts if drafts else None


HIT_TIERS = ("device_hit_tokens", "host_hit_tokens", "storage_hit_tokens")


def read_totals(pages: Iterable[Metrics]) -> dict[str, float]:
    """The counters of TOTALS over ``pages``, one a replica."""
    found: dict[str, float] = {}
    for metrics in pages:
        for key, names in TOTALS.items():
            values = (metrics.total(name, **labels) for name, labels in names)
            value = next((value for value in values if value is not None), None)
            if value is not None and math.isfinite(value):
                found[key] = found.get(key, 0.0) + value
    return found


def between(before: dict[str, float] | None, after: dict[str, float] | None) -> Counts:
    """A counter that fell belongs to an engine that was started anew: it is left out. None is a reading that failed,
    without which nothing is known; a counter that was not there yet stood at 0."""
    if before is None or after is None:
        return Counts({})
    return Counts({key: value - before.get(key, 0.0) for key, value in after.items() if value >= before.get(key, 0.0)})


def read_gauges(pages: Sequence[Metrics]) -> dict[str, float]:
    """The gauges of GAUGES now, of every replica and of the engines that share its port: requests summed, shares and
    lengths in the mean."""
    found: dict[str, float] = {}
    for key, names in GAUGES.items():
        said = [sample.value for page in pages for name in names for sample in page.find(name)]
        values = [value for value in said if math.isfinite(value)]
        if values:
            found[key] = sum(values) if key in ("running", "waiting") else sum(values) / len(values)
    return found


def pages(endpoints: Iterable[Endpoint]) -> list[Metrics]:
    """The metrics page of each. Raises InputError when one does not answer."""
    return [endpoint.metrics() for endpoint in endpoints]
