"""KV dtype, page size, and who reads them."""

from __future__ import annotations

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang import kernels
from optistack_adapters.sglang.rules.common import BACKENDS, attention_backends, drafting, is_mla, on_cpu

TRTLLM_MLA_DTYPES = ("fp8_e4m3", "bfloat16")


def _nvfp4(context: RuleContext) -> bool:
    return context.stack.kv.dtype.value == "nvfp4"


def _nvfp4_mla(context: RuleContext) -> bool:
    return _nvfp4(context) and is_mla(context)


def _nvfp4_hardware(context: RuleContext) -> str | None:
    good = context.node.sm in (*kernels.SM100, 120, 121)
    return f"SM{context.node.sm}" if _nvfp4(context) and not is_mla(context) and not good else None


def _nvfp4_dflash(context: RuleContext) -> bool:
    return _nvfp4(context) and drafting(context, "dflash", "dspark")


def _nvfp4_tiers(context: RuleContext) -> bool:
    return _nvfp4(context) and bool(context.stack.tiers)


def _trtllm_mla_dtype(context: RuleContext) -> str | None:
    dtype = context.stack.kv.dtype.value
    wrong = "trtllm_mla" in attention_backends(context) and dtype is not None and dtype not in TRTLLM_MLA_DTYPES
    return dtype if wrong and dtype != "nvfp4" else None


def _bfloat16_word(context: RuleContext) -> bool:
    word = context.launch.value_of("--kv-cache-dtype")
    return word == "bfloat16" and "trtllm_mla" in attention_backends(context)


def _unsayable_dtype(context: RuleContext) -> str | None:
    dtype = context.stack.kv.dtype.value
    if dtype not in ("float16", "float32") or dtype == context.model.dtype:
        return None
    return f"{dtype}, and the model is {context.model.dtype}"


def _page_size(context: RuleContext) -> str | None:
    page = context.stack.kv.page_size_tokens.value
    if page is None:
        return None
    for backend in attention_backends(context):
        takes = kernels.allowed_pages((backend,), context.model, context.node)
        if takes and page not in takes:
            instead = kernels.PAGE_TOKENS if kernels.PAGE_TOKENS in takes else takes[0]
            return f"{backend} takes {' or '.join(map(str, takes))}, and {page} becomes {instead}"
    return None


def _chunk(context: RuleContext) -> str | None:
    chunk = context.stack.serving.chunked_prefill_tokens.value
    page = context.stack.kv.page_size_tokens.value
    return f"{chunk} and {page}" if chunk is not None and chunk > 0 and page and chunk % page else None


def _draft_dtype(context: RuleContext) -> str | None:
    kv = context.stack.kv
    differs = kv.draft_dtype.value is not None and kv.draft_dtype.value != kv.dtype.value
    drafts = drafting(context) and not drafting(context, "ngram")
    return f"{kv.draft_dtype.value} instead of {kv.dtype.value}" if drafts and differs else None


def _fa3_e5m2(context: RuleContext) -> bool:
    return context.stack.kv.dtype.value == "fp8_e5m2" and "fa3" in attention_backends(context) and not on_cpu(context)


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-mla-nvfp4-kv",
        severity=Severity.ERROR,
        message="No MLA kernel reads NVFP4 KV; with some flags SGLang resolves it all the same and dies at its start.",
        fix="Use fp8_e4m3, the only quantized KV of MLA models.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:33, layers/attention/attention_registry.py:280",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        domain=Domain.KV,
        fires=_nvfp4_mla,
    ),
    Rule(
        id="sglang-nvfp4-kv-hardware",
        severity=Severity.ERROR,
        message="NVFP4 KV needs SM100 or SM120; this GPU is {detail}.",
        fix="Use fp8_e4m3.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:33",
        backends=BACKENDS,
        domain=Domain.KV,
        fires=_nvfp4_hardware,
    ),
    Rule(
        id="sglang-nvfp4-kv-dflash",
        severity=Severity.ERROR,
        message="SGLang does not speculate with DFlash or DSpark on NVFP4 KV.",
        fix="Use fp8_e4m3 KV, or leave the drafter out.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:168",
        backends=BACKENDS,
        fires=_nvfp4_dflash,
    ),
    Rule(
        id="sglang-nvfp4-kv-tiers",
        severity=Severity.ERROR,
        message="SGLang has no host tier for NVFP4 KV.",
        fix="Use fp8_e4m3 KV, or leave the cache tiers out.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:260",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_nvfp4_tiers,
    ),
    Rule(
        id="sglang-trtllm-mla-kv-dtype",
        severity=Severity.ERROR,
        message="trtllm_mla reads fp8_e4m3 and bfloat16 KV, not {detail}.",
        fix="Use fp8_e4m3 or bfloat16, or other attention kernels.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1215",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        domain=Domain.KV,
        fires=_trtllm_mla_dtype,
    ),
    Rule(
        id="sglang-trtllm-mla-bfloat16-word",
        severity=Severity.ERROR,
        message='With trtllm_mla, SGLang rejects the word "bfloat16" for KV and takes "bf16" for the same thing.',
        fix="Say bf16, or set kv.dtype and let optistack choose the word.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1215",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_bfloat16_word,
    ),
    Rule(
        id="sglang-kv-dtype-unsayable",
        severity=Severity.ERROR,
        message="SGLang's KV can be half or single precision only where the model is: {detail}.",
        fix="Use bfloat16 or fp8_e4m3 KV.",
        upstream="sglang 0.5.23 mem_cache/kv_cache_dtype.py",
        backends=BACKENDS,
        domain=Domain.KV,
        fires=_unsayable_dtype,
    ),
    Rule(
        id="sglang-page-size",
        severity=Severity.OVERRIDE,
        message="SGLang would silently use another page size: {detail}.",
        fix="Set kv.page_size_tokens to a size that the kernels take.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1144",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_page_size,
    ),
    Rule(
        id="sglang-chunk-of-pages",
        severity=Severity.ERROR,
        message="A prefill chunk must be a whole number of pages: {detail}.",
        fix="Make serving.chunked_prefill_tokens a multiple of the page size.",
        upstream="sglang 0.5.23 arg_groups/validation_hook.py:244",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_chunk,
    ),
    Rule(
        id="sglang-draft-kv-dtype",
        severity=Severity.ERROR,
        message="Before 0.5.18 SGLang gives a draft's KV the target's dtype; this stack wants {detail}.",
        fix="Use SGLang 0.5.18 or newer, or one dtype for both.",
        upstream="sglang 0.5.18 mem_cache/kv_cache_dtype.py:33",
        backends=BACKENDS,
        versions="<0.5.18",
        fires=_draft_dtype,
    ),
    Rule(
        id="sglang-fa3-fp8-e5m2",
        severity=Severity.OVERRIDE,
        message="fa3 reads fp8_e4m3 only: SGLang would silently fall back to the Triton kernels for fp8_e5m2.",
        fix="Use fp8_e4m3.",
        upstream="sglang 0.5.23 arg_groups/overrides.py:1263",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_fa3_e5m2,
    ),
)
