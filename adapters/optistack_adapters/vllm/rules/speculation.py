"""Speculative decoding: what is there, what it takes from the batch, and what it costs elsewhere."""

from __future__ import annotations

from optistack.errors import nearest
from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.vllm.defaults import BLACKWELL
from optistack_adapters.vllm.rules.reading import NON_CAUSAL_METHODS, WITH_TARGET_STATES, drafts, kv_dtype, method
from optistack_adapters.vllm.scheduling import group_requests

_SYNCHRONOUS = ("ngram", "suffix", "custom_class")
_BLOCK_DROPPERS = ("eagle", "eagle3", "mtp", "dflash")


def _unknown(context: RuleContext) -> str | None:
    word, known = method(context), context.engine.trait("speculation_methods", ())
    return None if word is None or word in known else f"{word}. {nearest(word, known)}"


def _limits(context: RuleContext) -> tuple[int, int] | None:
    """Prefill tokens and running requests of an attention group, where there is speculation and both are known."""
    tokens = context.stack.serving.chunked_prefill_tokens.value
    requests = group_requests(context.stack, context.spec, 0)
    return (tokens, requests) if method(context) and tokens is not None and requests else None


def _unlimited(context: RuleContext) -> bool:
    return method(context) in NON_CAUSAL_METHODS and _limits(context) is None


def _slots_of_032(context: RuleContext) -> str | None:
    return _without_room(context, {"dflash": drafts(context), "dspark": drafts(context) - 1, "draft_model": 1})


def _slots(context: RuleContext) -> str | None:
    ahead = drafts(context)
    return _without_room(
        context,
        {"dflash": ahead + 1, "dspark": ahead, "draft_model": ahead, "eagle": ahead, "eagle3": ahead, "mtp": ahead},
    )


def _without_room(context: RuleContext, slots: dict[str, int]) -> str | None:
    limits, needs = _limits(context), slots.get(method(context) or "", 0)
    if limits is None or limits[0] > needs:
        return None
    return f"{limits[0]} tokens a pass, {needs} slots for {drafts(context)} drafted tokens"


def _active(context: RuleContext) -> str | None:
    limits = _limits(context)
    if limits is None or method(context) not in NON_CAUSAL_METHODS:
        return None
    fit = limits[0] // (drafts(context) + 1)
    return f"{fit} instead of {limits[1]}" if fit < limits[1] else None


def _fp8_draft(context: RuleContext) -> bool:
    if method(context) not in NON_CAUSAL_METHODS or context.node.sm not in BLACKWELL:
        return False
    return str(context.stack.kv.draft_dtype.value or kv_dtype(context)).startswith("fp8")


def _last_block(context: RuleContext) -> bool:
    return method(context) in _BLOCK_DROPPERS and context.stack.serving.prefix_caching.value is not False


def _synchronous(context: RuleContext) -> str | None:
    word = method(context)
    return word if word in _SYNCHRONOUS else None


def _window(context: RuleContext) -> str | None:
    tokens = context.stack.speculation.draft_window_tokens.value
    return f"{tokens} tokens" if tokens is not None else None


def _no_draft(context: RuleContext) -> str | None:
    word = method(context)
    needs = word in (*WITH_TARGET_STATES, "draft_model", "medusa", "mlp_speculator") and word != "mtp"
    return word if needs and not context.stack.speculation.draft_checkpoint.is_set else None


SPECULATION_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-speculation-method",
        severity=Severity.ERROR,
        message="vLLM has no such speculation method in this version on this device: {detail}",
        fix="Choose one that it has, or give --allow-degraded to leave the speculation plugin out.",
        upstream="vllm 0.33 config/speculative.py SpeculativeMethod",
        fires=_unknown,
        backends=("vllm",),
        domain=Domain.SPECULATION,
    ),
    Rule(
        id="vllm-draft-missing",
        severity=Severity.ERROR,
        message="Method {detail} needs a draft checkpoint, and none is named.",
        fix="Name it in the speculation plugin's options.",
        upstream="vllm 0.33 config/speculative.py",
        fires=_no_draft,
        backends=("vllm",),
        domain=Domain.SPECULATION,
    ),
    Rule(
        id="vllm-draft-limits",
        severity=Severity.ERROR,
        message="With a block drafter vLLM derives its batch from the number of running requests and prefill tokens, "
        "and the plan states not both.",
        fix="Set serving.max_running_requests and serving.chunked_prefill_tokens.",
        upstream="vllm 0.26 config/vllm.py:1712, vllm 0.33 config/vllm.py:2388",
        fires=_unlimited,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-draft-slots-0.32",
        severity=Severity.ERROR,
        message="One request with its drafts does not fit into a prefill pass: {detail}.",
        fix="Raise serving.chunked_prefill_tokens.",
        upstream="vllm 0.32 config/speculative.py max_num_new_slots_for_drafting",
        fires=_slots_of_032,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        versions=">=0.32,<0.33",
    ),
    Rule(
        id="vllm-draft-slots",
        severity=Severity.ERROR,
        message="One request with its drafts does not fit into a prefill pass: {detail}.",
        fix="Raise serving.chunked_prefill_tokens.",
        upstream="vllm 0.33 config/vllm.py:2371",
        fires=_slots,
        backends=("vllm",),
        versions=">=0.33",
    ),
    Rule(
        id="vllm-draft-active-requests",
        severity=Severity.OVERRIDE,
        message="vLLM would lower the number of requests that run at once, so that a block of each fits into the "
        "prefill tokens: {detail}.",
        fix="Lower serving.max_running_requests or raise serving.chunked_prefill_tokens.",
        upstream="vllm 0.33 config/vllm.py:2378",
        fires=_active,
        backends=("vllm",),
        versions=">=0.33",
    ),
    Rule(
        id="vllm-draft-fp8-kv",
        severity=Severity.DEGRADED,
        message="The draft's KV is FP8 on SM100: that needs FlashAttention 4, else vLLM falls back to FlashInfer's "
        "path for attention both ways, which is known to have problems.",
        fix="Set the draft's KV dtype to bfloat16; it is a small part of the pool.",
        upstream="https://github.com/vllm-project/vllm/pull/48787, vllm 0.33 platforms/cuda.py:148",
        fires=_fp8_draft,
        evidence=Evidence.REPORTED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-draft-last-block",
        severity=Severity.DEGRADED,
        message="With this drafter vLLM recomputes the last cached page of a prompt in every request.",
        fix="vLLM 0.33 does not with dflash; smaller pages cost less.",
        upstream="vllm 0.26 and 0.32 treat dflash as eagle; vllm 0.33 config/speculative.py needs_eagle_block_drop, "
        "https://github.com/vllm-project/vllm/issues/54163",
        fires=_last_block,
        backends=("vllm",),
        versions="<0.33",
    ),
    Rule(
        id="vllm-speculation-synchronous",
        severity=Severity.NOTE,
        message="vLLM schedules synchronously with method {detail} unless its V2 runner has it.",
        fix="Give ngram_gpu a try, or a draft model.",
        upstream="vllm 0.33 config/vllm.py:1672",
        fires=_synchronous,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-draft-window",
        severity=Severity.SILENT,
        message="vLLM reads the draft's attention window from the draft's own config; {detail} is not passed on.",
        fix="Leave the window out, or write it into the draft's config.",
        upstream="vllm 0.33 model_executor/models/qwen3_dflash.py",
        fires=_window,
        backends=("vllm",),
        domain=Domain.SPECULATION,
    ),
)
