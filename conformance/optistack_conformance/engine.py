"""What the server says about itself, as far as thresholds depend on it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from optistack_conformance.answers import read_from
from optistack_conformance.outcomes import inconclusive

if TYPE_CHECKING:
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.metrics import Metrics

VLLM_INFO = "vllm:cache_config_info"
VLLM_DRAFTS = "vllm:spec_decode_num_drafts_total"
VLLM_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
GENERATED = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
PROMPTED = ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total")
VLLM_HITS = "vllm:prefix_cache_hits_total"
VLLM_TIER_HITS = "vllm:external_prefix_cache_hits_total"
SGLANG_CACHED = "sglang:cached_tokens_total"
SETTLED_WITHIN_S = 5.0
POLL_S = 0.1

T = TypeVar("T")


@dataclass(frozen=True)
class EngineInfo:
    """``None`` where the server does not say. ``page_tokens`` is the unit of prefix caching; ``kv_tokens`` what fits
    on the device; ``speculative`` whether it drafts; ``device`` what it runs on (``cpu``, ``cuda``); ``metrics``
    whether it has a metrics page, ``seeds`` whether it looks at a request's seed; ``prefix_cache`` whether it keeps
    prefixes; ``engines`` how many share the port (data parallel), each with a KV pool of its own."""

    name: str
    version: str
    model: str
    max_tokens: int | None = None
    kv_dtype: str | None = None
    page_tokens: int | None = None
    kv_tokens: int | None = None
    speculative: bool = False
    device: str | None = None
    metrics: bool = False
    seeds: bool = True
    prefix_cache: bool | None = None
    engines: int = 1


def read_engine(endpoint: Endpoint) -> EngineInfo:
    """Ask the server. Raises InputError when nobody answers and NoEngineError when it serves no model, or says so in
    another way than the API's."""
    with read_from(endpoint.url):
        return _read_engine(endpoint)


def _read_engine(endpoint: Endpoint) -> EngineInfo:
    model = endpoint.model()  # first: of what is no engine it says so
    length = endpoint.listed().get("max_model_len")
    metrics = endpoint.metrics()
    common: dict[str, Any] = {"model": model, "max_tokens": int(length) if length else None}
    common["metrics"] = bool(metrics.samples)
    info = endpoint.get_json("/server_info")
    if version := (endpoint.get_json("/version") or {}).get("version"):
        # A route for development: it is there only where it was asked for.
        said = re.search(r"\bdevice_config=(\w+)", str((info or {}).get("vllm_config")))
        return _vllm(str(version), metrics, {**common, "device": said[1] if said else None})
    info = info or endpoint.get_json("/get_server_info")
    if info:
        return _sglang(info, common)
    return EngineInfo(name="unknown", version="unknown", **common)


def running_requests(endpoint: Endpoint) -> float | None:
    """Requests that the engine works on now; None when it does not say."""
    return _first(endpoint.metrics(), RUNNING)


def generated_tokens(endpoint: Endpoint) -> float | None:
    """Tokens that the engine wrote so far, for whomever; None when it does not count them."""
    return _first(endpoint.metrics(), GENERATED)


def prompted_tokens(endpoint: Endpoint) -> float | None:
    """Tokens of all prompts so far, whoever sent them; None when the engine does not count them."""
    return _first(endpoint.metrics(), PROMPTED)


@dataclass(frozen=True)
class Counts:
    """What a server counted so far, for whomever; None where it does not. ``drafts`` with the tokens of them that were
    ``accepted``; ``hits``, prompt tokens that came from a cache."""

    drafts: float | None = None
    accepted: float | None = None
    hits: float | None = None


def read_counts(endpoint: Endpoint) -> Counts:
    """The counts, once they stand still: engines publish them a little after an answer is out."""

    def read() -> Counts:
        metrics = endpoint.metrics()
        return Counts(*(metrics.total(name) for name in (VLLM_DRAFTS, VLLM_ACCEPTED, VLLM_HITS)))

    return _settled(read, none=Counts())


def tier_hits(endpoint: Endpoint) -> float:
    """Tokens that came from a tier below the device so far, once the count stands still.

    Raises InconclusiveError when the engine does not count them.
    """

    def read() -> float | None:
        metrics = endpoint.metrics()
        # SGLang's counter is not on its page before it moves; 0.5.17 names the storage's backend, too.
        if not any(one.name == VLLM_TIER_HITS or one.name.startswith("sglang:") for one in metrics.samples):
            return None
        sources = ((one.labels.get("cache_source", ""), one.value) for one in metrics.find(SGLANG_CACHED))
        lower = sum(value for source, value in sources if source.startswith(("host", "storage")))
        return (metrics.total(VLLM_TIER_HITS) or 0.0) + lower

    total = _settled(read, none=None)
    if total is None:
        inconclusive("the server does not count the tokens that come from a tier (SGLang: --enable-metrics)")
    return total


def _settled(read: Callable[[], T], *, none: T) -> T:
    """What ``read`` gives twice in a row; the last one where other traffic keeps it moving, ``none`` at once."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    last = read()
    while last != none and time.monotonic() < deadline:
        time.sleep(POLL_S)
        now = read()
        if now == last:
            break
        last = now
    return last


def _vllm(version: str, metrics: Metrics, common: dict[str, Any]) -> EngineInfo:
    block = metrics.label(VLLM_INFO, "block_size")
    tokens = metrics.label(VLLM_INFO, "kv_cache_size_tokens")
    dtype = metrics.label(VLLM_INFO, "cache_dtype")
    return EngineInfo(
        name="vllm",
        version=version,
        page_tokens=_number(block),
        kv_tokens=_number(tokens),
        kv_dtype=None if dtype in (None, "auto") else dtype,
        speculative=metrics.has(VLLM_DRAFTS),
        prefix_cache={"True": True, "False": False}.get(metrics.label(VLLM_INFO, "enable_prefix_caching") or ""),
        engines=max(1, len(metrics.find(VLLM_INFO))),
        **common,
    )


def _sglang(info: dict[str, Any], common: dict[str, Any]) -> EngineInfo:
    dtype = info.get("kv_cache_dtype")
    return EngineInfo(
        name="sglang",
        version=str(info.get("version", "unknown")),
        page_tokens=_number(info.get("page_size")),
        kv_tokens=_number(info.get("max_total_num_tokens")),
        kv_dtype=None if dtype in (None, "auto") else str(dtype),
        speculative=bool(info.get("speculative_algorithm")),
        seeds=bool(info.get("enable_deterministic_inference")),
        prefix_cache=None if info.get("disable_radix_cache") is None else not info["disable_radix_cache"],
        # 0.5.23 keeps the groups of data-parallel attention here and says 1 in dp_size.
        engines=max(1, *(_number(info.get(name)) or 1 for name in ("dp_size", "attn_dp_size"))),
        device=None if info.get("device") is None else str(info["device"]),
        **common,
    )


def _first(metrics: Metrics, names: tuple[str, ...]) -> float | None:
    return next((total for name in names if (total := metrics.total(name)) is not None), None)


def _number(value: object) -> int | None:
    try:
        return int(float(str(value)))
    except (ValueError, OverflowError):  # no number, or infinity
        return None
