"""Rules about stacks as such, whatever the engine."""

from __future__ import annotations

import re

from optistack.rules import Evidence, Rule, RuleContext, Severity


def _context_too_short(context: RuleContext) -> str | None:
    wanted = context.spec.workload.input_tokens + context.spec.workload.output_tokens
    limit = context.stack.serving.context_tokens.value
    return f"{wanted:,} tokens, the engine takes {limit:,}" if limit is not None and wanted > limit else None


def _beyond_the_model(context: RuleContext) -> str | None:
    limit = context.stack.serving.context_tokens.value
    longest = context.model.max_context_tokens
    return f"{limit:,} tokens, the model {longest:,}" if limit is not None and 0 < longest < limit else None


def _fewer_sessions_than_wanted(context: RuleContext) -> str | None:
    fit, asked = context.budget.sessions, context.spec.workload.concurrency
    return f"{fit} of {asked}" if context.budget.feasible and fit is not None and fit < asked else None


def _parts_of_requests(context: RuleContext) -> str | None:
    asked = context.stack.serving.max_running_requests.value
    taken = context.spec.parallel.for_all_groups(asked) if asked is not None else None
    return f"{taken} instead of {asked}" if taken != asked else None


def _scattered_sessions(context: RuleContext) -> str | None:
    groups, caching = context.spec.parallel.attention_data, context.stack.serving.prefix_caching.value is not False
    return str(groups) if groups > 1 and caching and context.spec.workload.turns > 1 else None


def _dev_endpoints_in_the_open(context: RuleContext) -> bool:
    return context.spec.serving.dev_endpoints and not context.spec.serving.on_loopback


def _by_hand(context: RuleContext) -> str | None:
    flags = [word.partition("=")[0] for word in context.spec.engine_args if re.match(r"-+[A-Za-z]", word)]
    return ", ".join(dict.fromkeys(flags)) or None


CORE_RULES: tuple[Rule, ...] = (
    Rule(
        id="workload-longer-than-context",
        severity=Severity.ERROR,
        message="A request of the workload is longer than the context: {detail}.",
        fix="Raise serving.context_tokens or lower workload.input_tokens.",
        fires=_context_too_short,
        evidence=Evidence.READ,
    ),
    Rule(
        id="context-longer-than-model",
        severity=Severity.ERROR,
        message="The context is longer than the model was made for: {detail}.",
        fix="Lower serving.context_tokens.",
        fires=_beyond_the_model,
        evidence=Evidence.READ,
    ),
    Rule(
        id="kv-pool-below-concurrency",
        severity=Severity.DEGRADED,
        message="The KV pool holds fewer requests of the workload than are meant to run at once: {detail}.",
        fix="Requests will wait or be preempted; use more GPUs or a smaller KV dtype, or lower workload.concurrency.",
        fires=_fewer_sessions_than_wanted,
        evidence=Evidence.READ,
    ),
    Rule(
        id="requests-over-groups",
        severity=Severity.OVERRIDE,
        message="Every attention group runs equally many requests, which makes {detail} for the replica.",
        fix="Set serving.max_running_requests to a multiple of parallel.attention_data.",
        fires=_parts_of_requests,
        evidence=Evidence.READ,
        upstream="sglang mem_cache/kv_cache_configurator.py resolve_max_num_reqs; in vLLM a group is an engine",
    ),
    Rule(
        id="sessions-over-groups",
        severity=Severity.DEGRADED,
        message="The engine spreads requests over {detail} attention groups by turns or by load, and each has KV of "
        "its own: the next turn of a session mostly meets a group that does not have its prefix.",
        fix="Use parallel.replicas and the routing plugin where the model fits, or let clients name the group: the "
        "header X-data-parallel-rank in vLLM, the field routed_dp_rank in SGLang.",
        upstream="vllm 0.33 v1/engine/core_client.py get_core_engine_for_request, sglang 0.5.23 "
        "managers/data_parallel_controller.py; vLLM 0.26 with two groups had 59% of the later turns' tokens cached, "
        "with one 97% (evidence/bench-h200)",
        fires=_scattered_sessions,
        evidence=Evidence.OBSERVED,
    ),
    Rule(
        id="dev-endpoints-in-the-open",
        severity=Severity.ERROR,
        message="Development endpoints let anybody change the engine, and it listens on more than loopback.",
        fix="Listen on 127.0.0.1 or leave serving.dev_endpoints off.",
        fires=_dev_endpoints_in_the_open,
        evidence=Evidence.READ,
    ),
    Rule(
        id="engine-args-by-hand",
        severity=Severity.NOTE,
        message="These go to the engine as they are, and neither the memory budget nor the receipt knows of them: "
        "{detail}.",
        fix="--preflight asks the engine itself what it makes of them.",
        fires=_by_hand,
        evidence=Evidence.READ,
    ),
)
