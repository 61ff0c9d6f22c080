"""The quantization that is passed by hand, against the checkpoint's."""

from __future__ import annotations

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity

_FROM_CHECKPOINT = ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "awq", "gptq", "compressed-tensors")


def _no_metadata(context: RuleContext) -> str | None:
    word = context.launch.value_of("--quantization")
    return word if word in _FROM_CHECKPOINT and context.model.quantization is None else None


def _passed_over(context: RuleContext) -> str | None:
    """Only where no plugin set it: a plugin has its own to say about its wish."""
    word, own = context.launch.value_of("--quantization"), context.model.quantization
    if word is None or own is None or own.method != "modelopt" or word.startswith("modelopt"):
        return None
    return None if context.stack.quantization.engine_quantization.is_set else f"{word} is not {own.method}"


WEIGHT_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-quantization-metadata",
        severity=Severity.ERROR,
        message="--quantization {detail} is read from the checkpoint, and this one says nothing of it.",
        fix="Leave --quantization out, or use a checkpoint that is quantized.",
        upstream="vllm 0.33 model_executor/model_loader/weight_utils.py get_quant_config",
        fires=_no_metadata,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        domain=Domain.QUANTIZATION,
    ),
    Rule(
        id="vllm-quantization-passed-over",
        severity=Severity.OVERRIDE,
        message="vLLM takes the checkpoint's quantization whatever --quantization says: {detail}.",
        fix="Leave --quantization out.",
        upstream="vllm 0.33 config/model.py _verify_quantization, override_quantization_method",
        fires=_passed_over,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
)
