"""When each rule of this plugin fires."""

from __future__ import annotations

from optistack.rules import RuleContext
from optistack_quant_nvfp4 import kernels
from optistack_quant_nvfp4.checkpoint import MODELOPT, engine_words, recognise

QUANTIZATION_FLAGS = ("--quantization", "-q")


def flag_value(context: RuleContext, *spellings: str) -> str | None:
    """The value of a flag that may be spelled in several ways; ``None`` when the launch does not have it."""
    values = (context.launch.value_of(spelling) for spelling in spellings)
    return next((value for value in values if value is not None), None)


def contradiction(context: RuleContext) -> str | None:
    asked = flag_value(context, *QUANTIZATION_FLAGS)
    agreeing = engine_words(context.model.quantization)
    if asked is None or not agreeing or asked in agreeing:
        return None
    return f"--quantization {asked} is asked and the checkpoint is {', '.join(sorted(agreeing))}"


def method(context: RuleContext) -> str:
    return context.model.quantization.method if context.model.quantization else "none"


def vllm_overrides(context: RuleContext) -> str | None:
    return contradiction(context) if method(context) == MODELOPT else None


def vllm_refuses(context: RuleContext) -> str | None:
    return None if method(context) == MODELOPT else contradiction(context)


def cpu(context: RuleContext) -> bool:
    formats = context.engine.trait("weight_formats")
    return context.engine.device == "cpu" or (formats is not None and "nvfp4" not in formats)


def no_fp4_cores(context: RuleContext) -> str | None:
    sm = context.node.sm
    return f"SM{sm}" if context.engine.device == "cuda" and sm < kernels.FP4_SM else None


def weight_only_checkpoint(context: RuleContext) -> bool:
    found = recognise(context.model)
    return bool(found.nvfp4) and found.weight_only and context.node.sm >= kernels.FP4_SM


def moe_word(context: RuleContext) -> str | None:
    """The MoE backend of NVFP4 experts as planned or as the command line has it; ``None`` when the engine chooses."""
    if not recognise(context.model).experts:
        return None
    planned = context.stack.quantization.moe_backend.value
    word = planned or flag_value(context, "--moe-runner-backend", "--moe-backend")
    return None if word == "auto" else word


def modelopt_runner(context: RuleContext) -> str | None:
    word = moe_word(context)
    known = kernels.SGLANG_MODELOPT_MOE
    return word if method(context) == MODELOPT and word is not None and word not in known else None


def needs_blackwell(context: RuleContext) -> str | None:
    word = moe_word(context)
    fits = word in ("marlin", "humming", "emulation")
    return word if word is not None and not fits and no_fp4_cores(context) else None


def trtllm_family(context: RuleContext) -> str | None:
    word = moe_word(context)
    newer = context.node.sm >= kernels.FP4_SM and context.node.sm not in kernels.DATACENTER_BLACKWELL
    built_for_sm100 = ("flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutedsl")
    return f"{word} on SM{context.node.sm}" if newer and word in built_for_sm100 else None


def expert_parallel(context: RuleContext) -> str | None:
    parallel = context.spec.parallel
    if moe_word(context) not in ("flashinfer_cutlass", "flashinfer_cutedsl"):
        return None
    return f"{parallel.expert} of {parallel.tensor}" if parallel.expert not in (1, parallel.tensor) else None


def vllm_moe(context: RuleContext) -> str | None:
    word = moe_word(context)
    if word is None:
        return None
    known = kernels.vllm_moe_words(context.engine.version)
    return f"{word} is not one of {', '.join(known)}" if word.lower().replace("-", "_") not in known else None


def draft_inherits(context: RuleContext) -> str | None:
    asked = flag_value(context, *QUANTIZATION_FLAGS)
    has_draft = flag_value(context, "--speculative-draft-model-path", "--speculative-draft-model") is not None
    said = flag_value(context, "--speculative-draft-model-quantization") is not None
    return asked if asked and has_draft and not said else None
