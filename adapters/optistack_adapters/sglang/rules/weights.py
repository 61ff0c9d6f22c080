"""Quantized weights and their kernels."""

from __future__ import annotations

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang import kernels
from optistack_adapters.sglang.rules.common import BACKENDS, on_cpu

COMPRESSED_TENSORS = "compressed-tensors"
MODELOPT_NVFP4_WORD = "modelopt_fp4"


def _method(context: RuleContext) -> str:
    return context.model.quantization.method if context.model.quantization is not None else ""


def _nvfp4_experts(context: RuleContext) -> bool:
    return context.model.precision_of("routed_experts") == "nvfp4" and not on_cpu(context)


def _compressed_tensors_nvfp4(context: RuleContext) -> bool:
    return _nvfp4_experts(context) and _method(context) == COMPRESSED_TENSORS


def _moe_backend(context: RuleContext) -> str:
    return context.launch.value_of("--moe-runner-backend") or "auto"


def _auto_runner(context: RuleContext) -> bool:
    return _compressed_tensors_nvfp4(context) and _moe_backend(context) == "auto"


def _cutlass_runner(context: RuleContext) -> str | None:
    word = _moe_backend(context)
    refused = word in ("flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_trtllm_routed")
    return word if _compressed_tensors_nvfp4(context) and refused else None


def _before_blackwell(context: RuleContext) -> bool:
    return _compressed_tensors_nvfp4(context) and context.node.sm not in kernels.BLACKWELL


def _wrong_word(context: RuleContext) -> str | None:
    word = context.launch.value_of("--quantization")
    if not word:
        return None
    if _method(context).startswith("modelopt") and _nvfp4_experts(context) and word != MODELOPT_NVFP4_WORD:
        return f"{word}, and the checkpoint is {MODELOPT_NVFP4_WORD}"
    return None


def _refused_word(context: RuleContext) -> str | None:
    word = context.launch.value_of("--quantization")
    return word if word and _method(context) == COMPRESSED_TENSORS and word.startswith("modelopt") else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-ct-nvfp4-moe-auto",
        severity=Severity.DEGRADED,
        message="SGLang leaves the experts of a compressed-tensors NVFP4 checkpoint on auto, and auto ends in the "
        "slower CUTLASS kernels.",
        fix="Set quantization.moe_backend to flashinfer_trtllm.",
        upstream="sglang 0.5.23 layers/quantization/compressed_tensors/schemes/compressed_tensors_w4a4_nvfp4_moe.py:46",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        sm=kernels.SM100,
        fires=_auto_runner,
    ),
    Rule(
        id="sglang-ct-nvfp4-moe-runner",
        severity=Severity.ERROR,
        message="SGLang refuses {detail} for a compressed-tensors checkpoint.",
        fix="Set quantization.moe_backend to flashinfer_trtllm.",
        upstream="sglang 0.5.23 arg_groups/moe_hook.py:81",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_cutlass_runner,
    ),
    Rule(
        id="sglang-ct-nvfp4-moe-blackwell",
        severity=Severity.ERROR,
        message="The experts of a compressed-tensors NVFP4 checkpoint need a Blackwell GPU.",
        fix="Use a ModelOpt checkpoint, which runs weight-only on older GPUs, or a Blackwell GPU.",
        upstream="sglang 0.5.23 layers/quantization/compressed_tensors/schemes/compressed_tensors_w4a4_nvfp4_moe.py:39",
        backends=BACKENDS,
        versions="<0.5.22",
        fires=_before_blackwell,
    ),
    Rule(
        id="sglang-quantization-word",
        severity=Severity.OVERRIDE,
        message="--quantization {detail}: SGLang loads the checkpoint all the same, picks the kernels of its experts "
        "by the wrong word, and repeats it in /server_info.",
        fix="Take --quantization out: SGLang reads the checkpoint.",
        upstream="sglang 0.5.23 configs/model_config.py:2000",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_wrong_word,
    ),
    Rule(
        id="sglang-quantization-refused",
        severity=Severity.ERROR,
        message="SGLang does not load a compressed-tensors checkpoint as {detail}.",
        fix="Take --quantization out: SGLang reads the checkpoint.",
        upstream="sglang 0.5.23 configs/model_config.py:2000",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        domain=Domain.QUANTIZATION,
        fires=_refused_word,
    ),
)
