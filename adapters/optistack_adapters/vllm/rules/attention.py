"""Attention kernels against KV dtype, page size, GPU and drafts."""

from __future__ import annotations

from optistack.rules import Rule, RuleContext, Severity
from optistack_adapters.vllm.attention import MLA_KERNELS, TOKENSPEED_QUERY_TOKENS, MlaKernel
from optistack_adapters.vllm.rules.reading import drafts, is_mla, kv_dtype, on_cpu


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
    if word is None or on_cpu(context) or is_mla(context) == ("MLA" in word):
        return None
    return f"{word} is {'no' if is_mla(context) else 'an'} MLA kernel, and the model has {context.model.attention.kind}"


def _tokenspeed(context: RuleContext) -> str | None:
    query = 1 + drafts(context)
    if _word(context) != "TOKENSPEED_MLA" or query <= TOKENSPEED_QUERY_TOKENS:
        return None
    return f"{drafts(context)} drafted tokens make {query}"


def _prefill_word(context: RuleContext) -> str | None:
    return None if is_mla(context) else context.stack.serving.prefill_attention_backend.value


ATTENTION_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-mla-kernel-kv-dtype",
        severity=Severity.ERROR,
        message="The attention kernel does not take this KV: {detail}.",
        fix="Choose another serving.attention_backend (FLASHINFER_MLA on SM100, FLASHMLA on SM90) or KV dtype.",
        upstream="vllm 0.33 v1/attention/backends/mla: supported_kv_cache_dtypes",
        fires=_kv,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-mla-kernel-page",
        severity=Severity.ERROR,
        message="The attention kernel does not take this page size: {detail}.",
        fix="A page size of 64 suits every MLA kernel but CUTLASS_MLA, which wants 128.",
        upstream="vllm 0.33 v1/attention/backends/mla: get_supported_kernel_block_sizes",
        fires=_page,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-mla-kernel-gpu",
        severity=Severity.ERROR,
        message="The attention kernel does not run on this GPU: {detail}.",
        fix="Leave serving.attention_backend to the plan.",
        upstream="vllm 0.33 v1/attention/backends/mla: supports_compute_capability",
        fires=_gpu,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-attention-kind",
        severity=Severity.ERROR,
        message="The attention kernel is for the other kind of attention: {detail}.",
        fix="Leave serving.attention_backend to the plan.",
        upstream="vllm 0.33 v1/attention/backend.py validate_configuration",
        fires=_kind,
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
