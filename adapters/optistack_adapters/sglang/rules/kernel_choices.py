"""Attention kernels together with what else is asked of them."""

from __future__ import annotations

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang.rules.common import (
    BACKENDS,
    attention_backends,
    decode_backend,
    drafting,
    is_mla,
    kv_word,
    number,
    on_cpu,
    prefill_backend,
)

CUTEDSL_KV = ("auto", "bf16", "bfloat16", "fp8_e4m3")
DETERMINISTIC = ("fa3", "fa4", "flashinfer", "triton")
DETERMINISTIC_MLA = ("fa3", "fa4", "triton")
NVFP4_PREFILL = ("flashinfer", "trtllm_mha")


def _flex(context: RuleContext) -> bool:
    return "flex_attention" in attention_backends(context) and drafting(context)


def _cutedsl_prefill(context: RuleContext) -> bool:
    own = context.stack.serving.prefill_attention_backend.value
    return (own or context.launch.value_of("--prefill-attention-backend")) == "cutedsl_mla"


def _cutedsl_kv(context: RuleContext) -> str | None:
    word = kv_word(context)
    return word if "cutedsl_mla" in attention_backends(context) and word not in CUTEDSL_KV else None


def _tokenspeed(context: RuleContext) -> str | None:
    if "tokenspeed_mla" not in attention_backends(context):
        return None
    word = kv_word(context)
    return "cutedsl_mla" if word == "fp8_e4m3" else f"cutedsl_mla, with fp8_e4m3 KV instead of {word}"


def _deterministic(context: RuleContext) -> str | None:
    if not context.launch.has("--enable-deterministic-inference") or on_cpu(context):
        return None
    takes = DETERMINISTIC_MLA if is_mla(context) else DETERMINISTIC
    backend = context.stack.serving.attention_backend.value
    return f"{backend}; there is {', '.join(takes)}" if backend is not None and backend not in takes else None


def _deterministic_radix(context: RuleContext) -> bool:
    asked = context.launch.has("--enable-deterministic-inference") and not is_mla(context)
    caches = context.stack.serving.prefix_caching.value is not False
    return asked and caches and context.stack.serving.attention_backend.value == "flashinfer"


def _context_parallel(context: RuleContext) -> bool:
    spread = (number(context, "--dcp-size", "--decode-context-parallel-size") or 1) > 1
    return spread and drafting(context) and decode_backend(context) == "trtllm_mla"


def _nvfp4_prefill(context: RuleContext) -> str | None:
    if kv_word(context) != "nvfp4" or is_mla(context):
        return None
    backend = prefill_backend(context)
    return backend if backend and backend not in NVFP4_PREFILL else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-flex-attention-speculation",
        severity=Severity.ERROR,
        message="SGLang does not speculate on flex_attention.",
        fix="Use other attention kernels, or leave speculation out.",
        upstream="sglang 0.5.23 arg_groups/attention_hook.py:162",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_flex,
    ),
    Rule(
        id="sglang-cutedsl-mla-prefill",
        severity=Severity.ERROR,
        message="cutedsl_mla only decodes; it cannot be the kernels of prefill.",
        fix="Set serving.prefill_attention_backend to trtllm_mla, or leave it out.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1241",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_cutedsl_prefill,
    ),
    Rule(
        id="sglang-cutedsl-mla-kv-dtype",
        severity=Severity.ERROR,
        message="cutedsl_mla reads fp8_e4m3 and bfloat16 KV, not {detail}.",
        fix="Use fp8_e4m3 or bfloat16.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1248",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        domain=Domain.KV,
        fires=_cutedsl_kv,
    ),
    Rule(
        id="sglang-tokenspeed-mla-renamed",
        severity=Severity.OVERRIDE,
        message="tokenspeed_mla is an old name: SGLang would take {detail}.",
        fix="Set serving.attention_backend to cutedsl_mla and kv.dtype to fp8_e4m3.",
        upstream="sglang 0.5.23 arg_groups/serving_hook.py:304",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.23",
        fires=_tokenspeed,
    ),
    Rule(
        id="sglang-deterministic-kernels",
        severity=Severity.ERROR,
        message="--enable-deterministic-inference does not go with {detail}.",
        fix="Set serving.attention_backend to one of these.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1119, arg_groups/attention_hook.py:644",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_deterministic,
    ),
    Rule(
        id="sglang-deterministic-prefix-cache",
        severity=Severity.OVERRIDE,
        message="With --enable-deterministic-inference SGLang switches the prefix cache off for flashinfer.",
        fix="Set serving.attention_backend to triton or fa3, or serving.prefix_caching to false.",
        upstream="sglang 0.5.23 arg_groups/attention_hook.py:659",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_deterministic_radix,
    ),
    Rule(
        id="sglang-trtllm-mla-context-parallel",
        severity=Severity.ERROR,
        message="trtllm_mla does not verify drafts under decode context parallelism: SGLang dies when it builds it.",
        fix="Set serving.attention_backend to cutedsl_mla.",
        upstream="sglang 0.5.23 layers/attention/attention_registry.py:100",
        backends=BACKENDS,
        versions=">=0.5.23",
        fires=_context_parallel,
    ),
    Rule(
        id="sglang-nvfp4-kv-prefill",
        severity=Severity.ERROR,
        message="flashinfer and trtllm_mha alone prefill with NVFP4 KV, not {detail}.",
        fix="Leave serving.attention_backend out, or use fp8_e4m3 KV.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:53",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_nvfp4_prefill,
    ),
)
