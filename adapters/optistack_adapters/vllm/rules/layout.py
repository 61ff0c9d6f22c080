"""How a replica is spread over GPUs, and words that vLLM does not have."""

from __future__ import annotations

from optistack.rules import Rule, RuleContext, Severity

SCHEDULE_POLICIES = ("fcfs", "priority")


def _expert_size(context: RuleContext) -> str | None:
    parallel = context.spec.parallel
    if parallel.expert in (1, parallel.tensor):
        return None
    return f"{parallel.expert} of {parallel.tensor} GPUs"


def _dense_experts(context: RuleContext) -> bool:
    return context.model.moe is None and context.spec.parallel.expert > 1


def _dense_groups(context: RuleContext) -> bool:
    return context.model.moe is None and context.spec.parallel.attention_data > 1


def _heads(context: RuleContext) -> str | None:
    parallel, heads = context.spec.parallel, context.model.attention.heads
    if parallel.tensor % parallel.attention_data:
        return None
    ranks = parallel.tensor // parallel.attention_data
    return f"{heads} heads, {ranks} ranks" if heads % ranks else None


def _policy(context: RuleContext) -> str | None:
    word = context.stack.serving.schedule_policy.value
    return word if word is not None and word not in SCHEDULE_POLICIES else None


LAYOUT_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-expert-parallel-size",
        severity=Severity.ERROR,
        message="vLLM divides whole experts over all GPUs of a replica or over none: {detail}.",
        fix="Set parallel.expert to 1 or to parallel.tensor.",
        upstream="vllm 0.33 model_executor/layers/fused_moe/config.py FusedMoEParallelConfig",
        fires=_expert_size,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-expert-parallel-dense",
        severity=Severity.ERROR,
        message="This model has no experts to be parallel over.",
        fix="Leave parallel.expert out.",
        upstream="vllm 0.33 config/model.py:1502",
        fires=_dense_experts,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-attention-data-dense",
        severity=Severity.ERROR,
        message="Without experts, data parallelism in vLLM is whole copies of the model.",
        fix="Use parallel.replicas.",
        upstream="vllm 0.33 config/parallel.py",
        fires=_dense_groups,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-heads",
        severity=Severity.ERROR,
        message="The attention heads do not divide over the ranks: {detail}.",
        fix="Choose a parallel.tensor that divides the number of heads.",
        upstream="vllm 0.33 config/model.py verify_with_parallel_config",
        fires=_heads,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-schedule-policy",
        severity=Severity.ERROR,
        message="vLLM schedules by fcfs or by priority, not by {detail}.",
        fix="Use fcfs: vLLM finds cached prefixes whatever the order.",
        upstream="vllm 0.33 config/scheduler.py SchedulerPolicy",
        fires=_policy,
        backends=("vllm",),
    ),
)
