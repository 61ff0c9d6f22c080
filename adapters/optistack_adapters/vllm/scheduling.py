"""Flags for context, batches, prefix caching and CUDA graphs."""

from __future__ import annotations

from optistack.backend import RenderRequest
from optistack_adapters.base import LaunchBuilder, credit


def add_scheduling(builder: LaunchBuilder, request: RenderRequest) -> None:
    """Running requests are of the replica here and of one attention group in vLLM."""
    serving = request.stack.serving
    builder.carry("--max-model-len", "serving.context_tokens", serving.context_tokens)
    groups = request.spec.parallel.attention_data
    builder.carry(
        "--max-num-seqs",
        "serving.max_running_requests",
        serving.max_running_requests,
        word=lambda requests: -(-requests // groups),
    )
    builder.carry("--max-num-batched-tokens", "serving.chunked_prefill_tokens", serving.chunked_prefill_tokens)
    if serving.prefix_caching.is_set:
        flag = "--enable-prefix-caching" if serving.prefix_caching.value else "--no-enable-prefix-caching"
        builder.flag(flag, setting="serving.prefix_caching", **credit(serving.prefix_caching))
    builder.carry("--scheduling-policy", "serving.schedule_policy", serving.schedule_policy)
    if serving.cuda_graphs.value is False:
        builder.flag("--enforce-eager", setting="serving.cuda_graphs", **credit(serving.cuda_graphs))
    elif serving.cuda_graph_max_batch.is_set:
        tokens = graph_tokens(request)
        part = credit(serving.cuda_graph_max_batch)
        part["why"] = f"{part['why']}; counted in tokens, a request has {tokens // _batch(request)}".removeprefix("; ")
        builder.flag("--max-cudagraph-capture-size", tokens, setting="serving.cuda_graph_max_batch", **part)


def graph_tokens(request: RenderRequest) -> int:
    """Tokens of the largest captured batch: each request verifies its drafts and the token before them."""
    return _batch(request) * (1 + (request.stack.speculation.num_draft_tokens.value or 0))


def _batch(request: RenderRequest) -> int:
    return request.stack.serving.cuda_graph_max_batch.value or 1
