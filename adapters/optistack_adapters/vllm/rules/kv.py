"""KV dtypes and scales."""

from __future__ import annotations

from optistack.errors import nearest
from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack.versions import at_least
from optistack_adapters.vllm.defaults import BLACKWELL
from optistack_adapters.vllm.rules.reading import is_mla, kv_dtype

_PLAIN = ("float16", "bfloat16")


def _unknown(context: RuleContext) -> str | None:
    known = context.engine.trait("kv_dtypes", ())
    for dtype in (kv_dtype(context), context.stack.kv.draft_dtype.value):
        if dtype is not None and dtype not in known:
            return f"{dtype}. {nearest(dtype, known)}"
    return None


def _mla_nvfp4(context: RuleContext) -> bool:
    return is_mla(context) and kv_dtype(context) == "nvfp4"


def _mla_e5m2(context: RuleContext) -> bool:
    return is_mla(context) and kv_dtype(context) == "fp8_e5m2"


def _checkpoint_scheme(context: RuleContext) -> str | None:
    quantization = context.model.quantization
    if quantization is None or quantization.method != "compressed-tensors" or quantization.kv_cache_algo is None:
        return None
    if not is_mla(context) or str(kv_dtype(context)).startswith("fp8"):
        return None
    return f"it asks for {quantization.kv_cache_algo} KV and the plan has {kv_dtype(context) or 'none'}"


def _e5m2_scales(context: RuleContext) -> bool:
    quantization = context.model.quantization
    return kv_dtype(context) == "fp8_e5m2" and quantization is not None and quantization.kv_cache_algo == "FP8"


def _plain_mismatch(context: RuleContext) -> str | None:
    dtype = kv_dtype(context)
    if dtype not in _PLAIN or dtype == context.model.dtype:
        return None
    return f"{dtype} KV and {context.model.dtype} weights"


def _scales_file(context: RuleContext) -> str | None:
    return context.stack.kv.scales_file.value


def _nvfp4_gpu(context: RuleContext) -> str | None:
    asked = kv_dtype(context) == "nvfp4" and not is_mla(context) and context.engine.device == "cuda"
    if not asked or context.node.sm in BLACKWELL:
        return None
    head = context.model.attention.head_dim
    if at_least(context.engine.version, "0.32"):
        return f"heads of {head} values on SM{context.node.sm}" if head == 64 else None
    return f"SM{context.node.sm}"


def _nvfp4_answers(context: RuleContext) -> bool:
    return kv_dtype(context) == "nvfp4" and not is_mla(context)


KV_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-kv-dtype",
        severity=Severity.ERROR,
        message="vLLM has no such KV dtype on this device: {detail}",
        fix="Choose one that it has, or give --allow-degraded to leave the KV plugin out.",
        upstream="vllm 0.33 config/cache.py CacheDType",
        fires=_unknown,
        backends=("vllm",),
        domain=Domain.KV,
    ),
    Rule(
        id="vllm-mla-nvfp4-kv",
        severity=Severity.ERROR,
        message="vLLM refuses NVFP4 KV for MLA models.",
        fix="Use fp8_e4m3 KV.",
        upstream="vllm 0.33 config/vllm.py:3433",
        fires=_mla_nvfp4,
        backends=("vllm",),
        domain=Domain.KV,
    ),
    Rule(
        id="vllm-mla-fp8-e5m2-kv",
        severity=Severity.ERROR,
        message="No MLA kernel of vLLM takes fp8_e5m2 KV.",
        fix="Use fp8_e4m3 KV.",
        upstream="vllm 0.33 v1/attention/backends/mla: supported_kv_cache_dtypes",
        fires=_mla_e5m2,
        backends=("vllm",),
        domain=Domain.KV,
    ),
    Rule(
        id="vllm-mla-checkpoint-kv-scheme",
        severity=Severity.SILENT,
        message="vLLM does not follow a compressed-tensors checkpoint's KV scheme in MLA layers: {detail}.",
        fix="Set the KV dtype: plugin kv-fp8, or another that sets kv.dtype.",
        upstream="vllm 0.33 model_executor/layers/attention/mla_attention.py has no such branch, attention.py:287 has",
        fires=_checkpoint_scheme,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-fp8-e5m2-scales",
        severity=Severity.ERROR,
        message="fp8_e5m2 KV cannot be used with a checkpoint that brings FP8 KV scales.",
        fix="Use fp8_e4m3 KV.",
        upstream="vllm 0.33 model_executor/layers/attention/attention.py:219",
        fires=_e5m2_scales,
        backends=("vllm",),
        domain=Domain.KV,
    ),
    Rule(
        id="vllm-plain-kv-dtype",
        severity=Severity.ERROR,
        message="From 0.33 on vLLM refuses 16-bit KV in another dtype than the model's: {detail}.",
        fix="Leave the KV dtype alone or use an FP8 one.",
        upstream="vllm 0.33 config/vllm.py _reject_mismatched_float_kv_cache",
        fires=_plain_mismatch,
        evidence=Evidence.READ,
        backends=("vllm",),
        versions=">=0.33",
        domain=Domain.KV,
    ),
    Rule(
        id="vllm-kv-scales-file",
        severity=Severity.ERROR,
        message="vLLM takes KV scales from the checkpoint only and has no place for {detail}.",
        fix="Put the scales into the checkpoint, or leave the file out: scales are then 1.0.",
        upstream="vllm 0.33 model_executor/layers/quantization/kv_cache.py",
        fires=_scales_file,
        backends=("vllm",),
        domain=Domain.KV,
    ),
    Rule(
        id="vllm-nvfp4-kv-gpu",
        severity=Severity.ERROR,
        message="vLLM has no kernels for this NVFP4 KV: {detail}.",
        fix="Use fp8_e4m3 KV.",
        upstream="vllm 0.33 v1/attention/backends/flashinfer.py supports_combination, vllm 0.26 needs SM100",
        fires=_nvfp4_gpu,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        domain=Domain.KV,
    ),
    Rule(
        id="vllm-nvfp4-kv-answers",
        severity=Severity.DEGRADED,
        message="NVFP4 KV is reported to make vLLM answer with nonsense on a B200.",
        fix="Use fp8_e4m3 KV, or compare answers with BF16 KV first.",
        upstream="https://github.com/vllm-project/vllm/issues/55673",
        fires=_nvfp4_answers,
        evidence=Evidence.REPORTED,
        backends=("vllm",),
        sm=BLACKWELL,
    ),
)
