"""When each rule of this plugin fires."""

from __future__ import annotations

from optistack.rules import RuleContext
from optistack_kv_fp8.attention import (
    DATACENTER_BLACKWELL,
    E4M3,
    E5M2,
    SGLANG_E4M3_ONLY,
    SGLANG_MLA_CONVERTING,
    is_sparse,
)
from optistack_kv_fp8.scales import CHECKPOINT, FILE, UNIT, claims_scales

LONG_TOKENS = 32_768
"""From here on a prompt counts as long. The loss behind the rule was measured at 128k."""


def dtype(context: RuleContext) -> str:
    return str(context.stack.kv.dtype.value)


def quantized(context: RuleContext) -> bool:
    """Whether FP8 is still what the plan has, whoever decided it."""
    return dtype(context) in (E4M3, E5M2)


def mla(context: RuleContext) -> bool:
    return context.model.attention.kind == "mla"


def on_cpu(context: RuleContext) -> bool:
    return context.engine.device == "cpu"


def backend(context: RuleContext) -> str | None:
    """The attention backend that the plan has, or the one that SGLang picks for MLA when it has none."""
    planned = context.stack.serving.attention_backend.value
    if planned is not None or context.engine.backend != "sglang" or not mla(context) or is_sparse(context.model):
        return planned
    if context.node.sm in DATACENTER_BLACKWELL:
        return "trtllm_mla"
    return "fa3" if context.node.sm // 10 == 9 else None


def drafts(context: RuleContext) -> bool:
    return context.stack.speculation.draft_checkpoint.is_set


def draft_dtype(context: RuleContext) -> str:
    return str(context.stack.kv.draft_dtype.value)


def not_on_device(context: RuleContext) -> str | None:
    known = context.engine.trait("kv_dtypes")
    return dtype(context) if quantized(context) and known is not None and dtype(context) not in known else None


def cpu_mla(context: RuleContext) -> bool:
    return on_cpu(context) and mla(context) and quantized(context)


def vllm_cpu_head(context: RuleContext) -> str | None:
    size = context.model.attention.head_dim
    return str(size) if on_cpu(context) and quantized(context) and not mla(context) and size % 32 else None


def sglang_cpu_e5m2(context: RuleContext) -> bool:
    return on_cpu(context) and dtype(context) == E5M2


def unit_scales(context: RuleContext) -> bool:
    return quantized(context) and context.stack.kv.scales.value == UNIT


def unit_scales_not_kept(context: RuleContext) -> bool:
    return unit_scales(context) and context.model.kv_scales is True


def scales_unseen(context: RuleContext) -> bool:
    believed = context.stack.kv.scales.value == CHECKPOINT and context.model.kv_scales is None
    return quantized(context) and believed and claims_scales(context.model)


def vllm_mla_e5m2(context: RuleContext) -> bool:
    return not on_cpu(context) and mla(context) and dtype(context) == E5M2


def vllm_e5m2_scales(context: RuleContext) -> bool:
    return dtype(context) == E5M2 and claims_scales(context.model)


def sglang_mla_e5m2(context: RuleContext) -> str | None:
    if not mla(context) or dtype(context) != E5M2:
        return None
    words = (backend(context), context.stack.serving.prefill_attention_backend.value)
    return next((word for word in words if word in SGLANG_E4M3_ONLY), None)


def sglang_fa3_e5m2(context: RuleContext) -> bool:
    return backend(context) == "fa3" and dtype(context) == E5M2


def sglang_mla_converts(context: RuleContext) -> str | None:
    word = backend(context)
    return word if mla(context) and quantized(context) and word in SGLANG_MLA_CONVERTING else None


def sglang_fa3_long(context: RuleContext) -> str | None:
    tokens = context.spec.workload.input_tokens
    reads_fp8 = backend(context) == "fa3" and not mla(context) and dtype(context) == E4M3
    return f"{tokens:,} tokens" if reads_fp8 and tokens >= LONG_TOKENS else None


def sglang_mla_scales(context: RuleContext) -> bool:
    return mla(context) and quantized(context) and context.stack.kv.scales.value == CHECKPOINT


def sglang_mla_scales_file(context: RuleContext) -> bool:
    return mla(context) and context.stack.kv.scales.value == FILE


def scales_file(context: RuleContext) -> bool:
    return context.stack.kv.scales_file.is_set


def sglang_draft_follows(context: RuleContext) -> str | None:
    if not drafts(context) or draft_dtype(context) == dtype(context):
        return None
    return draft_dtype(context) if context.stack.speculation.draft_attention_backend.value != "fa4" else None


def sglang_fa4_draft(context: RuleContext) -> bool:
    fa4 = context.stack.speculation.draft_attention_backend.value == "fa4"
    return drafts(context) and fa4 and context.stack.speculation.method.value == "dflash" and _fp8_draft(context)


def vllm_fp8_draft(context: RuleContext) -> bool:
    parallel = context.stack.speculation.method.value in ("dflash", "dspark")
    return drafts(context) and parallel and _fp8_draft(context)


def vllm_draft_dtype(context: RuleContext) -> str | None:
    word = draft_dtype(context)
    if not drafts(context) or word not in ("bfloat16", "float16") or word == context.model.dtype:
        return None
    return f"{word}, and the model is {context.model.dtype}"


def _fp8_draft(context: RuleContext) -> bool:
    return draft_dtype(context) in (E4M3, E5M2)
