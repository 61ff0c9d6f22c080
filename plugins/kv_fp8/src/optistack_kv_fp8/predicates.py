"""When each rule of this plugin fires. It is in the stack, so the target's KV is FP8: its wish is a firm one."""

from __future__ import annotations

from optistack.rules import RuleContext
from optistack.versions import at_least
from optistack_kv_fp8.attention import E4M3, SGLANG_MLA_CONVERTING, SGLANG_SCALES_FILE
from optistack_kv_fp8.scales import CHECKPOINT, FILE, UNIT, claims_scales

LONG_TOKENS = 32_768
"""From here on a prompt counts as long. The loss behind the rule was measured at 128k."""


def dtype(context: RuleContext) -> str:
    return str(context.stack.kv.dtype.value)


def mla(context: RuleContext) -> bool:
    return context.model.attention.kind == "mla"


def backend(context: RuleContext) -> str | None:
    return context.stack.serving.attention_backend.value


def drafts(context: RuleContext) -> bool:
    return context.stack.speculation.draft_checkpoint.is_set


def draft_dtype(context: RuleContext) -> str:
    return str(context.stack.kv.draft_dtype.value)


def not_on_device(context: RuleContext) -> str | None:
    known = context.engine.trait("kv_dtypes")
    return dtype(context) if known is not None and dtype(context) not in known else None


def unit_scales(context: RuleContext) -> bool:
    return context.stack.kv.scales.value == UNIT


def unit_scales_not_kept(context: RuleContext) -> bool:
    return unit_scales(context) and context.model.kv_scales is True and not left_in_checkpoint(context)


def left_in_checkpoint(context: RuleContext) -> bool:
    """Whether the engine does not load the scales that the checkpoint has; three rules say so where they are asked."""
    if context.engine.backend == "vllm":
        return mla(context)
    if context.engine.backend != "sglang" or mla(context) or not compressed_tensors(context):
        return False
    return not at_least(context.engine.version, "0.5.21") or strategy(context) not in (None, "tensor")


def scales_unseen(context: RuleContext) -> bool:
    believed = context.stack.kv.scales.value == CHECKPOINT and context.model.kv_scales is None
    return believed and claims_scales(context.model)


def sglang_mla_converts(context: RuleContext) -> str | None:
    word = backend(context)
    return word if mla(context) and word in SGLANG_MLA_CONVERTING else None


def sglang_fa3_long(context: RuleContext) -> str | None:
    tokens = context.spec.workload.input_tokens
    reads_fp8 = backend(context) == "fa3" and not mla(context) and dtype(context) == E4M3
    return f"{tokens:,} tokens" if reads_fp8 and tokens >= LONG_TOKENS else None


def mla_scales(context: RuleContext) -> bool:
    return mla(context) and context.stack.kv.scales.value == CHECKPOINT


def sglang_mla_scales_file(context: RuleContext) -> bool:
    return mla(context) and context.stack.kv.scales.value == FILE


def compressed_tensors(context: RuleContext) -> bool:
    quantization = context.model.quantization
    return quantization is not None and quantization.method == "compressed-tensors"


def strategy(context: RuleContext) -> str | None:
    """What the checkpoint's KV scales are by, as its metadata says it."""
    quantization = context.model.quantization
    scheme = quantization.raw.get("kv_cache_scheme") if quantization is not None else None
    return scheme.get("strategy") if isinstance(scheme, dict) else None


def sglang_scales_left_out(context: RuleContext) -> bool:
    return not mla(context) and context.stack.kv.scales.value == CHECKPOINT and compressed_tensors(context)


def sglang_scales_by_head(context: RuleContext) -> str | None:
    by = strategy(context)
    return by if sglang_scales_left_out(context) and by not in (None, "tensor") else None


def sglang_scales_file(context: RuleContext) -> str | None:
    """What becomes of them: SGLang stores a number where the kernels of a quantized cache expect a tensor beside it."""
    if mla(context) or context.stack.kv.scales.value != FILE:
        return None
    if dtype(context) != E4M3:
        return f"it reads none for {dtype(context)}"
    if context.model.kv_scales:
        return "beside those of the checkpoint it does not start"
    if drafts(context):
        return "it gives the file to the draft too, whose model cannot load it, and does not start"
    return SGLANG_SCALES_FILE.get(backend(context) or "")


def sglang_scales_unused(context: RuleContext) -> str | None:
    """The attention that reads KV as it is although there are scales. A file beside scales is another rule's."""
    scales, word = context.stack.kv.scales.value, backend(context)
    file = scales == FILE and not context.model.kv_scales
    unused = (word == "torch_native" and (file or scales == CHECKPOINT)) or (word == "intel_amx" and file)
    return word if unused and not mla(context) else None


def vllm_draft_dtype(context: RuleContext) -> str | None:
    word = draft_dtype(context)
    if not drafts(context) or word not in ("bfloat16", "float16") or word == context.model.dtype:
        return None
    return f"{word}, and the model is {context.model.dtype}"
