"""Attention kernels against KV dtype, page size, GPU and drafts."""

from __future__ import annotations

from optistack.errors import nearest
from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack.versions import at_least
from optistack_adapters.vllm.attention import (
    KERNELS,
    MLA_KERNELS,
    PAGE_MULTIPLE,
    PREFILL_KERNELS,
    TOKENSPEED_QUERY_TOKENS,
    MlaKernel,
)
from optistack_adapters.vllm.defaults import BLACKWELL
from optistack_adapters.vllm.rules.reading import NON_CAUSAL_METHODS, drafts, is_mla, kv_dtype, method, on_cpu

OTHER_KERNELS = (
    "TRITON_FLASHINFER",
    "TRITON_FLASH_ATTN",
    "FLASH_ATTN_DIFFKV",
    "TRITON_ATTN_DIFFKV",
    "TURBOQUANT",
    "CUSTOM",
)
"""Known to vLLM and not to the tables of this adapter."""


def _word(context: RuleContext) -> str | None:
    return context.stack.serving.attention_backend.value


def _kernel(context: RuleContext) -> MlaKernel | None:
    word = _word(context)
    return MLA_KERNELS.get(word) if is_mla(context) and not on_cpu(context) and word is not None else None


def _kv(context: RuleContext) -> str | None:
    kernel, dtype = _kernel(context), kv_dtype(context)
    if kernel is None or dtype is None or dtype in kernel.kv_dtypes:
        return None
    return f"{_word(context)} takes {', '.join(kernel.kv_dtypes)}, and KV is {dtype}"


def _page(context: RuleContext) -> str | None:
    kernel, page = _kernel(context), context.stack.kv.page_size_tokens.value
    if kernel is None or page is None or page % kernel.page_multiple == 0:
        return None
    return f"{_word(context)} takes multiples of {kernel.page_multiple}, and the page size is {page}"


def _gpu(context: RuleContext) -> str | None:
    kernel, sm = _kernel(context), context.node.sm
    if kernel is None or not kernel.families or sm // 10 in kernel.families:
        return None
    return f"{_word(context)} runs on SM{' and SM'.join(f'{f}x' for f in kernel.families)}, and this is SM{sm}"


def _kind(context: RuleContext) -> str | None:
    word = _word(context)
    if word not in (*MLA_KERNELS, *KERNELS) or on_cpu(context) or is_mla(context) == (word in MLA_KERNELS):
        return None
    return f"{word} is {'no' if is_mla(context) else 'an'} MLA kernel, and the model has {context.model.attention.kind}"


def _unknown(context: RuleContext) -> str | None:
    word = _word(context)
    if word is None or on_cpu(context) or word in KERNELS or word in MLA_KERNELS or word in OTHER_KERNELS:
        return None
    return f"{word}. {nearest(word, (*MLA_KERNELS, *KERNELS) if is_mla(context) else (*KERNELS, *MLA_KERNELS))}"


def _takes(context: RuleContext, word: str | None) -> tuple[str, ...]:
    """KV dtypes of the kernel ``word`` for other attention than MLA; empty when it is none of those."""
    dtypes = KERNELS.get(word or "", ())
    old = word == "FLASH_ATTN" and context.node.sm in BLACKWELL and not at_least(context.engine.version, "0.32")
    return tuple(dtype for dtype in dtypes if not (old and dtype.startswith("fp8")))


def _plain_kv(context: RuleContext) -> str | None:
    word, dtype = _word(context), kv_dtype(context)
    takes = _takes(context, word)
    if on_cpu(context) or is_mla(context) or not takes or dtype is None or dtype in takes:
        return None
    return f"{word} takes {', '.join(takes)}, and KV is {dtype}"


def _plain_page(context: RuleContext) -> str | None:
    page = context.stack.kv.page_size_tokens.value
    if on_cpu(context) or page is None or page % PAGE_MULTIPLE == 0:
        return None
    return f"{page} tokens" if _kernel(context) is None else None


def _draft_word(context: RuleContext) -> str | None:
    known = method(context) in NON_CAUSAL_METHODS and not on_cpu(context)
    return context.stack.speculation.draft_attention_backend.value if known else None


def _draft_kind(context: RuleContext) -> str | None:
    word = _draft_word(context)
    return word if word in MLA_KERNELS else None


def _draft_kv(context: RuleContext) -> str | None:
    word, dtype = _draft_word(context), context.stack.kv.draft_dtype.value or kv_dtype(context)
    takes = _takes(context, word)
    if not takes or dtype is None or dtype in takes:
        return None
    return f"{word} takes {', '.join(takes)}, and the draft's KV is {dtype}"


def _prefill_kernel(context: RuleContext) -> str | None:
    word = context.stack.serving.prefill_attention_backend.value
    if word is None or on_cpu(context) or not is_mla(context):
        return None
    if word not in PREFILL_KERNELS:
        return f"there is no {word}. {nearest(word, PREFILL_KERNELS)}"
    families, sm = PREFILL_KERNELS[word], context.node.sm
    return f"{word} runs on SM100 and SM103, and this is SM{sm}" if families and sm // 10 not in families else None


def _tokenspeed(context: RuleContext) -> str | None:
    query = 1 + drafts(context)
    if _word(context) != "TOKENSPEED_MLA" or query <= TOKENSPEED_QUERY_TOKENS:
        return None
    return f"{drafts(context)} drafted tokens make {query}"


def _prefill_word(context: RuleContext) -> str | None:
    return None if is_mla(context) else context.stack.serving.prefill_attention_backend.value


ATTENTION_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-attention-word",
        severity=Severity.ERROR,
        message="vLLM has no such attention kernel on a GPU: {detail}",
        fix="Leave serving.attention_backend to the plan.",
        upstream="vllm 0.33 v1/attention/backends/registry.py AttentionBackendEnum",
        fires=_unknown,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-kernel-kv-dtype",
        severity=Severity.ERROR,
        message="The attention kernel does not take this KV: {detail}.",
        fix="Leave serving.attention_backend to vLLM, or choose another KV dtype.",
        upstream="vllm 0.33 v1/attention/backends: supports_kv_cache_dtype",
        fires=_plain_kv,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-kernel-page",
        severity=Severity.ERROR,
        message="vLLM's attention kernels on a GPU take pages of multiples of 16 tokens, not of {detail}.",
        fix="Set kv.page_size_tokens to 16, 32 or 64.",
        upstream="vllm 0.33 v1/attention/backends: get_supported_kernel_block_sizes",
        fires=_plain_page,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-draft-attention-kind",
        severity=Severity.ERROR,
        message="A block drafter has grouped-query attention, and {detail} is a kernel for MLA.",
        fix="Use FLASH_ATTN for the draft, or leave draft_attention_backend out.",
        upstream="vllm 0.33 v1/attention/backend.py validate_configuration: non-MLA not supported",
        fires=_draft_kind,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        domain=Domain.SPECULATION,
    ),
    Rule(
        id="vllm-draft-kernel-kv-dtype",
        severity=Severity.ERROR,
        message="The draft's attention kernel does not take its KV: {detail}.",
        fix="Set the draft's KV dtype to bfloat16.",
        upstream="vllm 0.33 v1/attention/backends: supports_kv_cache_dtype",
        fires=_draft_kv,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        domain=Domain.SPECULATION,
    ),
    Rule(
        id="vllm-mla-prefill-kernel",
        severity=Severity.ERROR,
        message="The prefill kernel for MLA cannot be used: {detail}.",
        fix="Leave serving.prefill_attention_backend out.",
        upstream="vllm 0.33 v1/attention/backends/mla/prefill/selector.py",
        fires=_prefill_kernel,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-mla-kernel-kv-dtype",
        severity=Severity.ERROR,
        message="The attention kernel does not take this KV: {detail}.",
        fix="Choose another serving.attention_backend (FLASHINFER_MLA on SM100, FLASHMLA on SM90) or KV dtype.",
        upstream="vllm 0.33 v1/attention/backends/mla: supported_kv_cache_dtypes",
        fires=_kv,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-mla-kernel-page",
        severity=Severity.ERROR,
        message="The attention kernel does not take this page size: {detail}.",
        fix="A page size of 64 suits every MLA kernel but CUTLASS_MLA, which wants 128.",
        upstream="vllm 0.33 v1/attention/backends/mla: get_supported_kernel_block_sizes",
        fires=_page,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-mla-kernel-gpu",
        severity=Severity.ERROR,
        message="The attention kernel does not run on this GPU: {detail}.",
        fix="Leave serving.attention_backend to the plan.",
        upstream="vllm 0.33 v1/attention/backends/mla: supports_compute_capability, supports_combination",
        fires=_gpu,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-attention-kind",
        severity=Severity.ERROR,
        message="The attention kernel is for the other kind of attention: {detail}.",
        fix="Leave serving.attention_backend to the plan.",
        upstream="vllm 0.33 v1/attention/backend.py validate_configuration",
        fires=_kind,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-tokenspeed-drafts",
        severity=Severity.ERROR,
        message="TOKENSPEED_MLA verifies at most 8 query tokens of a request: {detail}.",
        fix="Draft at most 7 tokens, or use FLASHINFER_MLA.",
        upstream="vllm 0.33 v1/attention/backends/mla/tokenspeed_mla.py _TOKENSPEED_MAX_Q_LEN",
        fires=_tokenspeed,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-prefill-attention",
        severity=Severity.SILENT,
        message="vLLM has separate prefill kernels for MLA models only; {detail} is not passed on.",
        fix="Leave the prefill attention backend out.",
        upstream="vllm 0.33 config/attention.py mla_prefill_backend",
        fires=_prefill_word,
        backends=("vllm",),
    ),
)
