"""Kernels of the experts, and how tokens get to them."""

from __future__ import annotations

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang import kernels
from optistack_adapters.sglang.rules.common import BACKENDS, on_cpu, said

SPANNING = ("deepep", "deepep_v2", "flashinfer", "flashinfer_megamoe", "megamoe", "mooncake", "mori", "nixl", "pplx")
"""All-to-all backends that spread the experts over all ranks (arg_groups/overrides.py, _A2A_EP_SPANNING_BACKENDS)."""

DISPATCHED = ("flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_trtllm", "flashinfer_trtllm_routed", "deep_gemm")
ONLINE = ("auto", "flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutedsl")

TAKES: dict[str, tuple[str, ...]] = {
    "flashinfer_cutlass": ("", "modelopt"),
    "flashinfer_cutedsl": ("modelopt",),
    "flashinfer_trtllm": ("", "modelopt", "fp8", "compressed-tensors"),
    "flashinfer_trtllm_routed": ("", "modelopt", "fp8"),
}
"""What a runner's check lets pass, by how the checkpoint was quantized."""


def _runner(context: RuleContext) -> str:
    return said(context, "--moe-runner-backend") or "auto"


def _dispatch(context: RuleContext) -> str:
    return said(context, "--moe-a2a-backend") or "none"


def _spanning(context: RuleContext) -> str | None:
    parallel = context.spec.parallel
    word = _dispatch(context)
    return word if word in SPANNING and parallel.expert != parallel.tensor else None


def _groups(context: RuleContext) -> str | None:
    parallel = context.spec.parallel
    uneven = _dispatch(context) == "flashinfer" and parallel.attention_data != parallel.tensor
    return f"{parallel.attention_data} groups and {parallel.tensor} ranks" if uneven else None


def _dispatched_runner(context: RuleContext) -> str | None:
    word = _runner(context)
    return word if _dispatch(context) == "flashinfer" and word not in DISPATCHED else None


def _checkpoint(context: RuleContext) -> str | None:
    takes = TAKES.get(_runner(context))
    if takes is None or on_cpu(context) or said(context, "--quantization"):
        return None
    quantization = context.model.quantization
    method = quantization.method if quantization is not None else ""
    method = "modelopt" if method.startswith("modelopt") else method
    if _runner(context) == "flashinfer_cutedsl" and context.node.sm not in kernels.SM100:
        # Only for the SM100 family does SGLang look at the checkpoint before it checks this.
        return f"flashinfer_cutedsl takes none on SM{context.node.sm}"
    # Those of a compressed-tensors NVFP4 checkpoint have a rule of their own.
    if method in takes or method == "compressed-tensors":
        return None
    return f"{_runner(context)} takes no {method or 'unquantized'} experts"


def _online_gpu(context: RuleContext) -> bool:
    return said(context, "--quantization") == "nvfp4_online" and context.node.sm not in kernels.SM100


def _online_runner(context: RuleContext) -> str | None:
    word = _runner(context)
    return word if said(context, "--quantization") == "nvfp4_online" and word not in ONLINE else None


def _online(context: RuleContext) -> bool:
    return said(context, "--quantization") == "nvfp4_online" and _runner(context) in ("auto", "flashinfer_trtllm")


def _normal_mode(context: RuleContext) -> bool:
    return _dispatch(context) == "deepep" and said(context, "--deepep-mode") == "normal"


def _minimax(context: RuleContext) -> bool:
    nvfp4 = context.model.precision_of("routed_experts") == "nvfp4"
    return nvfp4 and _runner(context) == "flashinfer_trtllm" and "minimaxm2" in context.model.architecture.lower()


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-moe-dispatch-ranks",
        severity=Severity.OVERRIDE,
        message="With --moe-a2a-backend {detail} SGLang spreads the experts over all ranks, whatever parallel.expert "
        "says.",
        fix="Set parallel.expert to parallel.tensor.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1611",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_spanning,
    ),
    Rule(
        id="sglang-moe-dispatch-groups",
        severity=Severity.ERROR,
        message="FlashInfer's all-to-all needs an attention group for each rank: {detail}.",
        fix="Set parallel.attention_data to parallel.tensor, or leave --moe-a2a-backend out.",
        upstream="sglang 0.5.23 arg_groups/moe_hook.py:475",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_groups,
    ),
    Rule(
        id="sglang-moe-dispatch-runner",
        severity=Severity.ERROR,
        message="FlashInfer's all-to-all does not feed the experts' kernels {detail}.",
        fix=f"Set quantization.moe_backend to one of {', '.join(DISPATCHED)}.",
        upstream="sglang 0.5.23 arg_groups/moe_hook.py:531",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_dispatched_runner,
    ),
    Rule(
        id="sglang-moe-runner-checkpoint",
        severity=Severity.ERROR,
        message="The experts' kernels are for other weights: {detail}.",
        fix="Leave quantization.moe_backend out: SGLang picks kernels for the checkpoint.",
        upstream="sglang 0.5.23 arg_groups/moe_hook.py:81, :96, :124, :138",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_checkpoint,
    ),
    Rule(
        id="sglang-nvfp4-online-gpu",
        severity=Severity.ERROR,
        message="SGLang quantizes experts to NVFP4 while it loads them on B200 and B300 only.",
        fix="Use a checkpoint that is NVFP4 already, or another GPU.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1457",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_online_gpu,
    ),
    Rule(
        id="sglang-nvfp4-online-runner",
        severity=Severity.ERROR,
        message="Experts that are quantized to NVFP4 while they load do not run on {detail}.",
        fix="Set quantization.moe_backend to flashinfer_trtllm.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1466",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_online_runner,
    ),
    Rule(
        id="sglang-nvfp4-online-nan",
        severity=Severity.DEGRADED,
        message="Experts that are quantized to NVFP4 while they load were reported to compute NaN with the FlashInfer "
        "of this release.",
        fix="Set quantization.moe_backend to flashinfer_cutedsl, or use a checkpoint that is NVFP4 already.",
        upstream="https://github.com/sgl-project/sglang/issues/34629",
        evidence=Evidence.REPORTED,
        backends=BACKENDS,
        versions="==0.5.18",
        sm=kernels.SM100,
        fires=_online,
    ),
    Rule(
        id="sglang-deepep-normal-graphs",
        severity=Severity.OVERRIDE,
        message="SGLang switches CUDA graphs off for --deepep-mode normal.",
        fix="Use --deepep-mode auto or low_latency.",
        upstream="sglang 0.5.23 arg_groups/moe_hook.py:384",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_normal_mode,
    ),
    Rule(
        id="sglang-minimax-nvfp4-trtllm",
        severity=Severity.DEGRADED,
        message="flashinfer_trtllm was reported to garble every answer of an NVFP4 MiniMax M2.7 (sglang 0.5.12).",
        fix="Set quantization.moe_backend to flashinfer_cutlass.",
        upstream="https://github.com/sgl-project/sglang/issues/26324",
        evidence=Evidence.REPORTED,
        backends=BACKENDS,
        sm=kernels.SM100,
        fires=_minimax,
    ),
)
