"""Memory, batches and what the scheduler does with them."""

from __future__ import annotations

from optistack.backend import RenderRequest
from optistack_adapters.base import LaunchBuilder, credit
from optistack_adapters.sglang.capacity import graph_batch, runs_graphs
from optistack_adapters.sglang.fraction import mem_fraction_static
from optistack_adapters.sglang.reserves import media_cache_bytes


def add_memory(build: LaunchBuilder, request: RenderRequest) -> None:
    """The memory fraction always; a cap on KV tokens where the fraction alone does not say how many there will be.

    That is on a CPU, and where the stack file gives the pool's size. Elsewhere the fraction decides: a cap would make
    the engine report what it was told instead of what it has.
    """
    budget, spec = request.budget, request.spec
    fraction = mem_fraction_static(budget, media_bytes=media_cache_bytes(request.model, request.engine.version))
    why = f"weights {_gb(budget.weight_bytes)} and KV {_gb(budget.kv_bytes)} of {_gb(budget.capacity_bytes)}"
    reference = "sglang mem_cache/kv_cache_configurator.py _profile_available_bytes"
    if budget.device == "cpu":
        why, reference = "only has to leave room for --max-total-tokens, which decides", ""
    build.flag("--mem-fraction-static", f"{fraction:.4f}".rstrip("0"), source="plan", why=why, reference=reference)
    if budget.device == "cpu" or spec.serving.kv_memory_gib is not None:
        build.flag(
            "--max-total-tokens",
            budget.kv_tokens // spec.parallel.attention_data,
            source="plan",
            why=f"{_gb(budget.kv_bytes)} of KV at {budget.bytes_per_kv_token:,} bytes a token",
            setting="budget.kv_tokens",
        )


def add_scheduling(build: LaunchBuilder, request: RenderRequest) -> None:
    """Requests, prefill chunks, CUDA graphs, prefix cache, order of requests."""
    serving, groups = request.stack.serving, request.spec.parallel.attention_data
    build.carry(
        "--max-running-requests",
        "serving.max_running_requests",
        serving.max_running_requests,
        request.spec.parallel.for_all_groups,  # SGLang gives each group the rounded-down part, which can be none
    )
    build.carry(
        "--chunked-prefill-size",
        "serving.chunked_prefill_tokens",
        serving.chunked_prefill_tokens,
        lambda tokens: tokens * groups,
        note=f"SGLang divides it among {groups} attention groups" if groups > 1 else "",
    )
    if request.node.device == "cuda":
        _graphs(build, request)
    if serving.prefix_caching.value is False:
        build.flag("--disable-radix-cache", setting="serving.prefix_caching", **credit(serving.prefix_caching))
    build.carry("--schedule-policy", "serving.schedule_policy", serving.schedule_policy)


def add_reporting(build: LaunchBuilder, request: RenderRequest) -> None:
    """What a receipt reads."""
    serving = request.stack.serving
    build.switch("--enable-metrics", "serving.metrics", serving.metrics)
    build.switch("--enable-cache-report", "serving.cache_report", serving.cache_report)


def _graphs(build: LaunchBuilder, request: RenderRequest) -> None:
    serving = request.stack.serving
    if not runs_graphs(request.stack):
        part = credit(serving.cuda_graphs)
        build.flag("--disable-decode-cuda-graph", setting="serving.cuda_graphs", **part)
        build.flag("--disable-prefill-cuda-graph", setting="serving.cuda_graphs", **part)
    elif serving.cuda_graph_max_batch.is_set:
        build.carry("--cuda-graph-max-bs-decode", "serving.cuda_graph_max_batch", serving.cuda_graph_max_batch)
    else:
        build.flag(
            "--cuda-graph-max-bs-decode",
            graph_batch(request.stack, request.spec),
            source="sglang",
            why="a graph for every batch of running requests, and no memory for larger ones",
        )


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
