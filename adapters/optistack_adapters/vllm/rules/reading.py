"""Short ways to ask a rule's context for what rules keep asking."""

from __future__ import annotations

from optistack.rules import RuleContext
from optistack_adapters.vllm.scheduling import BLOCK_DRAFTERS

NON_CAUSAL_METHODS = BLOCK_DRAFTERS
"""Methods whose draft model attends both ways inside a block."""

WITH_TARGET_STATES = ("eagle", "eagle3", "mtp", "dflash", "dspark")


def is_mla(context: RuleContext) -> bool:
    return context.model.attention.kind == "mla"


def on_cpu(context: RuleContext) -> bool:
    return context.engine.device == "cpu"


def kv_dtype(context: RuleContext) -> str | None:
    return context.stack.kv.dtype.value


def method(context: RuleContext) -> str | None:
    return context.stack.speculation.method.value


def drafts(context: RuleContext) -> int:
    """Tokens drafted in a step; 0 without speculation."""
    return context.stack.speculation.num_draft_tokens.value or 0
