"""Flags for context, batches, prefix caching and CUDA graphs."""

from __future__ import annotations

from optistack.backend import RenderRequest
from optistack.settings.resolved import ResolvedStack
from optistack.stack.spec import StackSpec
from optistack.versions import at_least
from optistack_adapters.base import LaunchBuilder, credit

BLOCK_DRAFTERS = ("dflash", "dspark")


def add_scheduling(builder: LaunchBuilder, request: RenderRequest) -> None:
    """Running requests are of the replica here and of one attention group in vLLM."""
    serving = request.stack.serving
    builder.carry("--max-model-len", "serving.context_tokens", serving.context_tokens)
    builder.carry(
        "--max-num-seqs",
        "serving.max_running_requests",
        serving.max_running_requests,
        word=request.spec.parallel.of_group,
    )
    slots = draft_slots(request.stack, request.spec, request.engine.version)
    builder.carry(
        "--max-num-batched-tokens",
        "serving.chunked_prefill_tokens",
        serving.chunked_prefill_tokens,
        word=lambda tokens: tokens + slots,
        note=f"and {slots} that vLLM {request.engine.version} sets aside for drafts" if slots else "",
    )
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


def group_requests(stack: ResolvedStack, spec: StackSpec, unset: int) -> int:
    """Running requests of one attention group, which is an engine of its own; ``unset`` where nobody says."""
    running = stack.serving.max_running_requests.value
    return spec.parallel.of_group(running) if running else unset


def draft_slots(stack: ResolvedStack, spec: StackSpec, version: str) -> int:
    """Tokens of a pass that vLLM before 0.32 sets aside for a block drafter: all drafts but one of every request.

    It schedules ``--max-num-batched-tokens`` less these (0.26 config/vllm.py:1689, ``_set_max_num_scheduled_tokens``).
    """
    drafts = stack.speculation.num_draft_tokens.value
    if stack.speculation.method.value not in BLOCK_DRAFTERS or at_least(version, "0.32") or not drafts:
        return 0
    return (drafts - 1) * group_requests(stack, spec, 0)


def graph_tokens(request: RenderRequest) -> int:
    """Tokens of the largest captured batch: each request verifies its drafts and the token before them."""
    return _batch(request) * (1 + (request.stack.speculation.num_draft_tokens.value or 0))


def _batch(request: RenderRequest) -> int:
    return request.stack.serving.cuda_graph_max_batch.value or 1
