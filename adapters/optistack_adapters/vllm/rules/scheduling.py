"""Batches, CUDA graphs and the flags beside them."""

from __future__ import annotations

import math

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.vllm.rules.reading import drafts, method, on_cpu

ASYNCHRONOUS_DRAFTS = ("eagle", "eagle3", "mtp", "draft_model", "ngram_gpu", "dflash", "dspark")


def _batch(context: RuleContext) -> str | None:
    tokens, requests = _flag(context, "--max-num-batched-tokens"), _flag(context, "--max-num-seqs")
    if tokens is None or requests is None or tokens >= requests:
        return None
    return f"{tokens} tokens a pass for {requests} requests"


def _graphs(context: RuleContext) -> str | None:
    asked, tokens = _flag(context, "--max-cudagraph-capture-size"), _flag(context, "--max-num-batched-tokens")
    if asked is None or on_cpu(context):
        return None
    fits = asked if tokens is None else min(asked, tokens)
    if not drafts(context):
        fits = _captured(fits)
    return f"{fits} tokens instead of {asked}" if fits != asked else None


def _captured(tokens: int) -> int:
    """The largest batch up to ``tokens`` that vLLM captures: 1, 2, 4, then in steps of 8, of 16 from 256 on."""
    if tokens < 8:
        return max(size for size in (0, 1, 2, 4) if size <= tokens)
    step = 8 if tokens < 256 else 16
    return tokens // step * step


def _async(context: RuleContext) -> str | None:
    word = method(context)
    known = word is None or word in ASYNCHRONOUS_DRAFTS
    return None if known or not context.launch.has("--async-scheduling") else word


def _no_chunks(context: RuleContext) -> str | None:
    tokens, longest = _flag(context, "--max-num-batched-tokens"), _flag(context, "--max-model-len")
    if not context.launch.has("--no-enable-chunked-prefill") or tokens is None or longest is None:
        return None
    return f"{tokens} tokens a pass, prompts of {longest}" if tokens < longest else None


def _lora(context: RuleContext) -> str | None:
    tokens, requests = _flag(context, "--max-num-batched-tokens"), _flag(context, "--max-num-seqs")
    if not (context.launch.has("--enable-lora") and drafts(context) and tokens and requests):
        return None
    needs = requests * (drafts(context) + 1)
    return f"{tokens} of {needs}" if tokens < needs else None


def _world(context: RuleContext) -> str | None:
    kinds = ("tensor", "pipeline", "data", "prefill-context")
    world = math.prod(_flag(context, f"--{what}-parallel-size") or 1 for what in kinds)
    if on_cpu(context) or world <= context.node.gpus or context.launch.has("--distributed-executor-backend"):
        return None
    return f"{world} ranks, {context.node.gpus} GPUs"


def _context_groups(context: RuleContext) -> str | None:
    ranks, groups = _flag(context, "--tensor-parallel-size") or 1, _flag(context, "--decode-context-parallel-size")
    return f"{ranks} by {groups}" if groups and ranks % groups else None


def _balancing(context: RuleContext) -> bool:
    return (
        not on_cpu(context)
        and context.launch.has("--enable-eplb")
        and not context.launch.has("--enable-expert-parallel")
    )


def _overlap(context: RuleContext) -> str | None:
    overlaps = context.launch.has("--enable-dbo") or (_flag(context, "--ubatch-size") or 0) > 1
    if on_cpu(context) or not overlaps:
        return None
    word = context.launch.value_of("--all2all-backend") or "allgather_reducescatter"
    return None if word.startswith(("deepep_", "nixl_ep")) else word


def _routed(context: RuleContext) -> bool:
    return context.launch.has("--enable-return-routed-experts") and context.model.moe is None


def _draft_metrics(context: RuleContext) -> bool:
    word = context.launch.value_of("--per-request-spec-decode-metrics")
    return word not in (None, "none") and method(context) is None


def _flag(context: RuleContext, name: str) -> int | None:
    word = context.launch.value_of(name)
    return int(word) if word and word.isdigit() else None


SCHEDULING_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-batch-tokens",
        severity=Severity.ERROR,
        message="vLLM refuses more running requests than tokens of one pass: {detail}.",
        fix="Lower serving.max_running_requests or raise serving.chunked_prefill_tokens.",
        upstream="vllm 0.33 config/scheduler.py:331",
        fires=_batch,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-graph-sizes",
        severity=Severity.OVERRIDE,
        message="vLLM would capture CUDA graphs up to another size (--max-cudagraph-capture-size): {detail}.",
        fix="Set serving.cuda_graph_max_batch to 1, 2, 4 or a multiple of 8 that the tokens of a pass allow.",
        upstream="vllm 0.33 config/vllm.py _set_cudagraph_sizes",
        fires=_graphs,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-async-scheduling-drafts",
        severity=Severity.ERROR,
        message="--async-scheduling is refused with drafts by {detail}; vLLM 0.33 takes it.",
        fix="Leave the flag out: vLLM schedules asynchronously where it can.",
        upstream="vllm 0.33 config/vllm.py:1672",
        fires=_async,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        versions="<0.33",
        domain=Domain.SPECULATION,
    ),
    Rule(
        id="vllm-whole-prefill",
        severity=Severity.ERROR,
        message="Without chunked prefill a prompt has to fit into one pass: {detail}.",
        fix="Leave --no-enable-chunked-prefill out, or raise serving.chunked_prefill_tokens to serving.context_tokens.",
        upstream="vllm 0.33 config/scheduler.py:315",
        fires=_no_chunks,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-lora-drafts",
        severity=Severity.ERROR,
        message="With LoRA the drafts of all running requests have to fit into the tokens of one pass: {detail}.",
        fix="Lower serving.max_running_requests or raise serving.chunked_prefill_tokens.",
        upstream="vllm 0.33 engine/arg_utils.py:2722",
        fires=_lora,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-world-size",
        severity=Severity.ERROR,
        message="The launch has more ranks than the replica has GPUs: {detail}.",
        fix="Take the parallel sizes out of engine_args and set parallel.tensor.",
        upstream="vllm 0.33 config/parallel.py:1072",
        fires=_world,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-decode-context-size",
        severity=Severity.ERROR,
        message="Tensor parallelism does not divide by --decode-context-parallel-size: {detail}.",
        fix="Choose a divisor of parallel.tensor.",
        upstream="vllm 0.33 config/parallel.py:600",
        fires=_context_groups,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-expert-balancing",
        severity=Severity.ERROR,
        message="--enable-eplb moves experts between ranks, and without expert parallelism there are none to move.",
        fix="Set parallel.expert to parallel.tensor, or leave --enable-eplb out.",
        upstream="vllm 0.33 config/parallel.py:566",
        fires=_balancing,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-overlap-all2all",
        severity=Severity.ERROR,
        message="--enable-dbo and --ubatch-size need DeepEP or NIXL between experts, and --all2all-backend is "
        "{detail}.",
        fix="Give --all2all-backend deepep_low_latency beside it, or leave them out.",
        upstream="vllm 0.33 config/vllm.py: use_ubatching",
        fires=_overlap,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-draft-metrics",
        severity=Severity.ERROR,
        message="--per-request-spec-decode-metrics is refused without speculation.",
        fix="Leave the flag out, or add a speculation plugin.",
        upstream="vllm 0.33 config/vllm.py:1739",
        fires=_draft_metrics,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        versions=">=0.32",
    ),
    Rule(
        id="vllm-routed-experts",
        severity=Severity.ERROR,
        message="--enable-return-routed-experts is refused for a model without experts.",
        fix="Leave the flag out.",
        upstream="vllm 0.33 config/vllm.py:1187",
        fires=_routed,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        versions=">=0.32",
    ),
)
