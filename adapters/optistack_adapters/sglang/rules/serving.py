"""The engine as a whole."""

from __future__ import annotations

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang.rules.common import BACKENDS


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
)
