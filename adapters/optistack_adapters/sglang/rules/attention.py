"""Attention kernels: which models and GPUs they are for."""

from __future__ import annotations

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang import kernels
from optistack_adapters.sglang.rules.common import BACKENDS, attention_backends, is_mla, on_cpu

FAMILIES: dict[str, tuple[int, ...]] = {
    "trtllm_mla": kernels.BLACKWELL,
    "cutedsl_mla": kernels.SM100,
    "tokenspeed_mla": kernels.SM100,
    "trtllm_mha": (*kernels.SM90, *kernels.SM100, 120, 121),
    "fa3": (80, 86, 87, 89, *kernels.SM90),  # layers/attention/attention_registry.py:243
}
"""Compute capabilities that a kernel is built for."""


def _wrong_gpu(context: RuleContext) -> str | None:
    for backend in attention_backends(context):
        family = FAMILIES.get(backend)
        if family is not None and context.node.sm not in family:
            return f"{backend} on {'a CPU' if on_cpu(context) else f'SM{context.node.sm}'}"
    return None


def _mla_only(context: RuleContext) -> str | None:
    if is_mla(context):
        return None
    return next((backend for backend in attention_backends(context) if backend in kernels.MLA_ONLY), None)


def _not_mla(context: RuleContext) -> str | None:
    if not is_mla(context):
        return None
    return next((backend for backend in attention_backends(context) if backend in kernels.NOT_MLA), None)


def _heads(context: RuleContext) -> str | None:
    groups = context.spec.parallel.tensor // max(1, context.spec.parallel.attention_data)
    heads = context.model.attention.heads
    return f"{heads} heads over {groups} ranks" if groups and heads % groups else None


def _torch_native_graphs(context: RuleContext) -> bool:
    wants = context.stack.serving.cuda_graphs.value is True
    slow = {"torch_native", "flex_attention"} & set(attention_backends(context))
    return wants and bool(slow) and not on_cpu(context)


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-attention-gpu",
        severity=Severity.ERROR,
        message="These attention kernels do not run here: {detail}.",
        fix="Leave serving.attention_backend out: optistack picks kernels for the GPU.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1211, :1233, arg_groups/attention_hook.py:200",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_wrong_gpu,
    ),
    Rule(
        id="sglang-attention-mla-only",
        severity=Severity.ERROR,
        message="{detail} is for MLA models; SGLang accepts it for this one and dies when it builds the kernels.",
        fix="Leave serving.attention_backend out, or take kernels for grouped-query attention.",
        upstream="sglang 0.5.23 layers/attention/attention_registry.py:97",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_mla_only,
    ),
    Rule(
        id="sglang-attention-not-mla",
        severity=Severity.ERROR,
        message="{detail} has no MLA; SGLang accepts it for this model and dies when it builds the kernels.",
        fix="Leave serving.attention_backend out, or take kernels for MLA.",
        upstream="sglang 0.5.23 layers/attention/attention_registry.py:280",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_not_mla,
    ),
    Rule(
        id="sglang-heads-over-ranks",
        severity=Severity.ERROR,
        message="Attention heads must divide over the ranks of an attention group: {detail}.",
        fix="Use a tensor-parallel size that divides the heads.",
        upstream="sglang 0.5.23 models/deepseek_v2.py:2057",
        backends=BACKENDS,
        fires=_heads,
    ),
    Rule(
        id="sglang-torch-native-graphs",
        severity=Severity.OVERRIDE,
        message="SGLang switches CUDA graphs off for torch_native and flex_attention.",
        fix="Use other attention kernels, or set serving.cuda_graphs to false.",
        upstream="sglang 0.5.23 arg_groups/attention_hook.py:124",
        backends=BACKENDS,
        fires=_torch_native_graphs,
    ),
)
