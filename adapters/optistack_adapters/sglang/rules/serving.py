"""The engine as a whole."""

from __future__ import annotations

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang.rules.common import BACKENDS, drafting, number, said


def _colon(context: RuleContext) -> str | None:
    name = context.spec.model.served_name
    return name if name and ":" in name else None


def _groups(context: RuleContext) -> str | None:
    parallel = context.spec.parallel
    if parallel.attention_data <= 1 or parallel.tensor % parallel.attention_data == 0:
        return None
    return f"{parallel.attention_data} groups of {parallel.tensor} ranks"


def _conservative(context: RuleContext) -> bool:
    spread = context.spec.parallel.attention_data > 1
    return spread and not context.launch.has("--schedule-conservativeness")


def _priority(context: RuleContext) -> str | None:
    policy = context.stack.serving.schedule_policy.value or said(context, "--schedule-policy") or "fcfs"
    asked = context.launch.has("--enable-priority-scheduling")
    return policy if asked and policy not in ("fcfs", "lof") else None


def _retraction(context: RuleContext) -> bool:
    asked = said(context, "--retraction-policy") == "priority"
    return asked and not context.launch.has("--enable-priority-scheduling")


def _load_publisher(context: RuleContext) -> bool:
    word = said(context, "--load-publish-endpoint")
    return bool(word) and word != "off" and not context.launch.has("--kv-events-config")


def _lm_head(context: RuleContext) -> bool:
    return context.launch.has("--enable-dp-lm-head") and context.spec.parallel.attention_data <= 1


def _replicas(context: RuleContext) -> bool:
    copies = number(context, "--dp-size", "--data-parallel-size") or 1
    return copies > 1 and context.spec.parallel.attention_data > 1


def _split(context: RuleContext) -> str | None:
    mode = said(context, "--disaggregation-mode") or "null"
    return mode if mode != "null" and drafting(context, "dflash") else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-served-name-colon",
        severity=Severity.ERROR,
        message="SGLang takes what follows a colon in a model's name for an adapter's: {detail}.",
        fix="Choose a model.served_name without a colon.",
        upstream="sglang 0.5.23 arg_groups/validation_hook.py:213",
        backends=BACKENDS,
        fires=_colon,
    ),
    Rule(
        id="sglang-attention-groups",
        severity=Severity.ERROR,
        message="Attention groups must divide the ranks: {detail}.",
        fix="Make parallel.attention_data a divisor of parallel.tensor.",
        upstream="sglang 0.5.23 arg_groups/parallel_hook.py:288",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_groups,
    ),
    Rule(
        id="sglang-attention-data-conservativeness",
        severity=Severity.OVERRIDE,
        message="With data-parallel attention SGLang multiplies the scheduler's conservativeness by 0.3: it admits "
        "more requests, and retracts more.",
        fix="Watch sglang:num_retracted_reqs, or set --schedule-conservativeness in engine_args.",
        upstream="sglang 0.5.23 arg_groups/parallel_hook.py:318",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_conservative,
    ),
    Rule(
        id="sglang-priority-policy",
        severity=Severity.ERROR,
        message="Priority scheduling goes with the policies fcfs and lof, not with {detail}.",
        fix="Set serving.schedule_policy to fcfs, or take --enable-priority-scheduling out.",
        upstream="sglang 0.5.23 arg_groups/validation_hook.py:282",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_priority,
    ),
    Rule(
        id="sglang-retraction-priority",
        severity=Severity.ERROR,
        message="--retraction-policy priority needs --enable-priority-scheduling.",
        fix="Add it to engine_args, or take the policy out.",
        upstream="sglang 0.5.23 arg_groups/validation_hook.py:304",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.23",
        fires=_retraction,
    ),
    Rule(
        id="sglang-load-publisher",
        severity=Severity.ERROR,
        message="--load-publish-endpoint is found through the KV events, and there are none.",
        fix="Add --kv-events-config to engine_args, or take the endpoint out.",
        upstream="sglang 0.5.23 arg_groups/validation_hook.py:453",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_load_publisher,
    ),
    Rule(
        id="sglang-dp-lm-head",
        severity=Severity.OVERRIDE,
        message="SGLang switches --enable-dp-lm-head off without data-parallel attention.",
        fix="Take it out of engine_args, or set parallel.attention_data.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1369",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_lm_head,
    ),
    Rule(
        id="sglang-replicas-attention-data",
        severity=Severity.ERROR,
        message="--dp-size makes replicas, which SGLang does not combine with data-parallel attention.",
        fix="Take --dp-size out of engine_args: optistack plans replicas itself.",
        upstream="sglang 0.5.23 arg_groups/parallel_hook.py:288",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.22",
        fires=_replicas,
    ),
    Rule(
        id="sglang-dflash-disaggregation",
        severity=Severity.DEGRADED,
        message="DFlash was reported to crash in an engine of which {detail} is the only task.",
        fix="Take --disaggregation-mode out of engine_args, or leave the drafter out.",
        upstream="https://github.com/sgl-project/sglang/issues/36140",
        evidence=Evidence.REPORTED,
        backends=BACKENDS,
        fires=_split,
    ),
)
