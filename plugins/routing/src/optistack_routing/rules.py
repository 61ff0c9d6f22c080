"""What is known about routing policies."""

from __future__ import annotations

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_routing.options import SESSION_POLICIES


def _sessions(context: RuleContext) -> bool:
    return context.stack.routing.policy.value in SESSION_POLICIES


def _no_prefix_cache(context: RuleContext) -> str | None:
    off = context.stack.serving.prefix_caching.value is False
    return str(context.stack.routing.policy.value) if _sessions(context) and off else None


def _sessions_forgotten(context: RuleContext) -> bool:
    return not _sessions(context) and context.spec.workload.turns > 1


def _pinned(context: RuleContext) -> bool:
    return context.stack.routing.policy.value == "affinity"


def _one_replica(context: RuleContext) -> bool:
    return context.spec.parallel.replicas == 1


def _several_replicas(context: RuleContext) -> str | None:
    return str(context.spec.parallel.replicas) if not _one_replica(context) else None


def _above_the_engine(context: RuleContext) -> str | None:
    target = context.stack.routing.target_concurrency.value
    limit = context.stack.serving.max_running_requests.value
    return f"{target} and {limit}" if target is not None and limit is not None and target > limit else None


def _above_the_pool(context: RuleContext) -> str | None:
    target = context.stack.routing.target_concurrency.value
    fit = context.budget.sessions if context.budget else None
    if target is None or not fit or target <= max(fit, context.spec.workload.concurrency):
        return None
    return f"{target}, and the KV pool holds {fit}"


RULES: tuple[Rule, ...] = (
    Rule(
        id="routing-no-router",
        severity=Severity.NOTE,
        message="The policy over these {detail} replicas is planned, and no router is started: this release has none.",
        fix="Put a router of your own before them, with these settings.",
        upstream="plugins/routing/README.md",
        fires=_several_replicas,
    ),
    Rule(
        id="routing-one-replica",
        severity=Severity.NOTE,
        message="This plan has one replica: the policy has something to choose only in a fleet with more of them.",
        fix="Take the settings to the fleet's router, or set parallel.replicas.",
        upstream="plugins/routing/README.md",
        fires=_one_replica,
    ),
    Rule(
        id="routing-without-prefix-cache",
        severity=Severity.SILENT,
        message="Policy {detail} keeps sessions where their KV is, and prefix caching is off: there is none to find.",
        fix="Leave serving.prefix_caching out, or set the policy to least-loaded.",
        upstream="plugins/routing/README.md",
        fires=_no_prefix_cache,
    ),
    Rule(
        id="routing-forgets-sessions",
        severity=Severity.DEGRADED,
        message="The workload has sessions of several turns and the policy knows none: turns find their KV by chance.",
        fix="Set policy to kv-aware.",
        upstream="https://github.com/NVIDIA-NeMo/RL/pull/3663",
        evidence=Evidence.REPORTED,
        fires=_sessions_forgotten,
    ),
    Rule(
        id="routing-affinity-is-strict",
        severity=Severity.DEGRADED,
        message="Strict affinity locks sessions to a saturated replica while others are idle.",
        fix="Set policy to kv-aware, which gives sessions away above overload_margin.",
        upstream="https://github.com/PrimeIntellect-ai/prime-rl/pull/3255",
        evidence=Evidence.REPORTED,
        fires=_pinned,
    ),
    Rule(
        id="routing-target-above-engine",
        severity=Severity.DEGRADED,
        message="A replica is meant to run more requests than its engine admits at once: {detail}.",
        fix="Raise serving.max_running_requests or lower target_concurrency.",
        upstream="sglang --max-running-requests; vllm --max-num-seqs",
        fires=_above_the_engine,
    ),
    Rule(
        id="routing-target-above-pool",
        severity=Severity.DEGRADED,
        message="A replica is meant to run more requests of the workload than fit at once: {detail}.",
        fix="Lower target_concurrency.",
        upstream="the plan's memory budget",
        fires=_above_the_pool,
    ),
)
