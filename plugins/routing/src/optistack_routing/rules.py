"""What is known about routing policies."""

from __future__ import annotations

from math import inf

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_routing.options import SESSION_POLICIES

SMALL_PAGE_TOKENS = 16


def _sessions(context: RuleContext) -> bool:
    return context.stack.routing.policy.value in SESSION_POLICIES


def _no_prefix_cache(context: RuleContext) -> str | None:
    off = context.stack.serving.prefix_caching.value is False
    return str(context.stack.routing.policy.value) if _sessions(context) and off else None


def _sessions_forgotten(context: RuleContext) -> bool:
    return not _sessions(context) and context.spec.workload.turns > 1


def _pinned(context: RuleContext) -> bool:
    numbers = context.stack.routing.parameters.value or {}
    return context.stack.routing.policy.value == "affinity" and numbers.get("load_bound") == inf


def _one_replica(context: RuleContext) -> bool:
    return context.spec.parallel.replicas == 1


def _precise(context: RuleContext) -> bool:
    return bool(context.stack.routing.precise.value)


def _no_events(context: RuleContext) -> str | None:
    return context.engine.backend if _precise(context) and not context.launch.has("--kv-events-config") else None


def _several_ranks(context: RuleContext) -> str | None:
    ranks = context.spec.parallel.attention_data
    return str(ranks) if _precise(context) and ranks > 1 else None


def _no_tokenizer(context: RuleContext) -> str | None:
    folder = context.model.path
    missing = folder is not None and not (folder / "tokenizer.json").is_file()
    return str(folder) if _precise(context) and missing else None


def _small_pages(context: RuleContext) -> str | None:
    page = context.stack.kv.page_size_tokens.value
    return str(page) if _precise(context) and page is not None and page < SMALL_PAGE_TOKENS else None


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
        message="Affinity without a bound locks sessions to a saturated replica while others are idle.",
        fix="Leave load_bound out, or set policy to kv-aware.",
        upstream="https://github.com/PrimeIntellect-ai/prime-rl/pull/3255",
        evidence=Evidence.REPORTED,
        fires=_pinned,
    ),
    Rule(
        id="routing-precise-without-events",
        severity=Severity.ERROR,
        message="Precise routing follows KV events, and this launch of {detail} publishes none.",
        fix="Leave option precise out, or use vllm or sglang.",
        upstream="vllm distributed/kv_events.py; sglang srt/disaggregation/kv_events.py",
        fires=_no_events,
    ),
    Rule(
        id="routing-precise-several-ranks",
        severity=Severity.ERROR,
        message="Each of a replica's {detail} attention ranks has a cache of its own, and the engine picks the rank: "
        "what a replica holds does not say what a request will find.",
        fix="Leave option precise out, or set parallel.attention_data to 1.",
        upstream="vllm distributed/kv_events.py: one publisher for each data-parallel rank",
        fires=_several_ranks,
    ),
    Rule(
        id="routing-precise-without-tokenizer",
        severity=Severity.ERROR,
        message="Precise routing turns prompts into tokens, and {detail} has no tokenizer.json to do it with.",
        fix="Leave option precise out: kv-aware estimates then.",
        upstream="plugins/routing/README.md",
        fires=_no_tokenizer,
    ),
    Rule(
        id="routing-precise-small-pages",
        severity=Severity.DEGRADED,
        message="KV pages are small here (tokens: {detail}), and the router keeps and hashes an entry for each.",
        fix="Leave option precise out, or use an engine or attention backend with larger pages.",
        upstream="plugins/routing/README.md",
        fires=_small_pages,
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
