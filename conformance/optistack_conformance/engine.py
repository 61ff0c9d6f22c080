"""What the server says about itself, as far as thresholds depend on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optistack_conformance.answers import read_from

if TYPE_CHECKING:
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.metrics import Metrics

VLLM_INFO = "vllm:cache_config_info"
VLLM_DRAFTS = "vllm:spec_decode_num_drafts_total"
VLLM_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
GENERATED = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
VLLM_TIER_HITS = "vllm:external_prefix_cache_hits_total"
SGLANG_CACHED = "sglang:cached_tokens_total"


@dataclass(frozen=True)
class EngineInfo:
    """``None`` where the server does not say. ``page_tokens`` is the unit of prefix caching; ``kv_tokens`` what fits
    on the device; ``speculative`` whether it drafts; ``device`` what it runs on (``cpu``, ``cuda``); ``metrics``
    whether it has a metrics page, ``seeds`` whether it looks at a request's seed."""

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


def read_engine(endpoint: Endpoint) -> EngineInfo:
    """Ask the server. Raises InputError when nobody answers and CheckFailedError when it serves no model, or says so
    in another way than the API's."""
    with read_from(endpoint.url):
        return _read_engine(endpoint)


def _read_engine(endpoint: Endpoint) -> EngineInfo:
    models = (endpoint.get_json("/v1/models") or {}).get("data") or [{}]
    length = models[0].get("max_model_len")
    metrics = endpoint.metrics()
    common: dict[str, Any] = {"model": endpoint.model(), "max_tokens": int(length) if length else None}
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


def tier_hits(endpoint: Endpoint) -> float:
    """Tokens that came from a tier below the device so far; 0 when the engine does not count them."""
    metrics = endpoint.metrics()
    lower = (metrics.total(SGLANG_CACHED, cache_source=source) for source in ("host", "storage"))
    return (metrics.total(VLLM_TIER_HITS) or 0.0) + sum(total or 0.0 for total in lower)


def draft_counts(endpoint: Endpoint) -> tuple[float, float] | None:
    """Drafts proposed and draft tokens accepted so far; None when the engine does not count them."""
    metrics = endpoint.metrics()
    drafts, accepted = metrics.total(VLLM_DRAFTS), metrics.total(VLLM_ACCEPTED)
    return None if drafts is None or accepted is None else (drafts, accepted)


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
        device=None if info.get("device") is None else str(info["device"]),
        **common,
    )


def _first(metrics: Metrics, names: tuple[str, ...]) -> float | None:
    return next((total for name in names if (total := metrics.total(name)) is not None), None)


def _number(value: object) -> int | None:
    try:
        return int(float(str(value)))
    except ValueError:
        return None
