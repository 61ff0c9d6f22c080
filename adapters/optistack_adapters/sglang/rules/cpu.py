"""What SGLang does not have on a CPU."""

from __future__ import annotations

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang.rules.common import BACKENDS, drafting, drafting_method, on_cpu


def _dflash(context: RuleContext) -> bool:
    return on_cpu(context) and drafting(context, "dflash")


def _other_speculation(context: RuleContext) -> str | None:
    other = on_cpu(context) and drafting(context) and not drafting(context, "dflash")
    return drafting_method(context) if other else None


def _tiers(context: RuleContext) -> bool:
    return on_cpu(context) and bool(context.stack.tiers)


def _nvfp4_checkpoint(context: RuleContext) -> bool:
    return on_cpu(context) and any(part.precision == "nvfp4" for part in context.model.components)


def _nvfp4_asked(context: RuleContext) -> str | None:
    if not on_cpu(context) or _nvfp4_checkpoint(context):
        return None
    weights = context.stack.quantization
    asked = (weights.experts, weights.shared_experts, weights.dense, weights.engine_quantization)
    words = [value.value for value in (*asked, weights.fp4_gemm_backend) if value.value]
    fp4 = [word for word in words if "fp4" in word or word == weights.fp4_gemm_backend.value]
    return ", ".join(fp4) or None


def _fp8_e5m2(context: RuleContext) -> bool:
    return on_cpu(context) and context.stack.kv.dtype.value == "fp8_e5m2"


def _graphs(context: RuleContext) -> bool:
    return on_cpu(context) and context.stack.serving.cuda_graphs.value is True


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-cpu-dflash",
        severity=Severity.ERROR,
        message="SGLang has DFlash on CUDA, NPU and XPU devices only.",
        fix="Leave the drafter out on a CPU (--allow-degraded does), or use vLLM, which has it there.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:297",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        domain=Domain.SPECULATION,
        fires=_dflash,
    ),
    Rule(
        id="sglang-cpu-speculation",
        severity=Severity.ERROR,
        message="On a CPU, SGLang's {detail} speculation needs sgl_kernel, whose CPU build no package index has.",
        fix="Leave speculation out on a CPU (--allow-degraded does).",
        upstream="sglang 0.5.23, at start: No module named sgl_kernel",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        domain=Domain.SPECULATION,
        fires=_other_speculation,
    ),
    Rule(
        id="sglang-cpu-hicache",
        severity=Severity.ERROR,
        message="SGLang's host tier pins memory with the CUDA driver: there is none on a CPU.",
        fix="Leave the cache tiers out on a CPU (--allow-degraded does); its KV is in host RAM anyway.",
        upstream="sglang 0.5.23 platforms/cuda.py:110 (hicache_device_kernels)",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        domain=Domain.CACHE,
        fires=_tiers,
    ),
    Rule(
        id="sglang-cpu-nvfp4-checkpoint",
        severity=Severity.ERROR,
        message="The checkpoint has NVFP4 weights, and SGLang has no kernels for them on a CPU.",
        fix="Use a BF16 checkpoint on a CPU.",
        upstream="sglang 0.5.23 layers/quantization/modelopt_quant.py:1549 (get_min_capability)",
        backends=BACKENDS,
        fires=_nvfp4_checkpoint,
    ),
    Rule(
        id="sglang-cpu-nvfp4",
        severity=Severity.ERROR,
        message="SGLang has no FP4 kernels on a CPU, and the stack asks for them ({detail}).",
        fix="Leave the FP4 plugin out on a CPU (--allow-degraded does).",
        upstream="sglang 0.5.23 layers/quantization/fp4_utils.py",
        backends=BACKENDS,
        domain=Domain.QUANTIZATION,
        fires=_nvfp4_asked,
    ),
    Rule(
        id="sglang-cpu-fp8-e5m2-kv",
        severity=Severity.ERROR,
        message="SGLang does not take fp8_e5m2 KV on a CPU.",
        fix="Use fp8_e4m3.",
        upstream="sglang 0.5.23 mem_cache/kv_cache_dtype.py:62",
        backends=BACKENDS,
        domain=Domain.KV,
        fires=_fp8_e5m2,
    ),
    Rule(
        id="sglang-cpu-graphs",
        severity=Severity.SILENT,
        message="There are no CUDA graphs on a CPU; serving.cuda_graphs is ignored.",
        fix="Take serving.cuda_graphs out.",
        upstream="sglang 0.5.23 arg_groups/attention_hook.py:124",
        backends=BACKENDS,
        fires=_graphs,
    ),
)
