"""Speculative decoding: what SGLang refuses, replaces or ignores."""

from __future__ import annotations

from optistack.errors import OptistackError
from optistack.facts.model import ModelFacts
from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang.defaults import RUNNING_REQUESTS
from optistack_adapters.sglang.kernels import DRAFT_BACKENDS
from optistack_adapters.sglang.rules.common import BACKENDS, drafting, on_cpu

UNQUANTIZED = ("bfloat16", "float16", "float32")


def _on_gpu(context: RuleContext, *methods: str) -> bool:
    return drafting(context, *methods) and not on_cpu(context)


def _running_requests(context: RuleContext) -> bool:
    capped = drafting(context, "dflash", "dspark", "eagle", "eagle3", "nextn", "ngram", "standalone")
    return capped and not context.launch.has("--max-running-requests")


def _no_draft(context: RuleContext) -> bool:
    return _on_gpu(context, "dflash") and not context.stack.speculation.draft_checkpoint.is_set


def _draft(context: RuleContext) -> ModelFacts | None:
    """The draft, where its config is at hand without asking the network."""
    from optistack.facts.checkpoint import load_model

    checkpoint = context.stack.speculation.draft_checkpoint.value
    if checkpoint is None or not drafting(context, "dflash"):
        return None
    try:
        return load_model(checkpoint)
    except OptistackError:
        return None


def _draft_heads(context: RuleContext) -> str | None:
    draft = _draft(context)
    if draft is None:
        return None
    ranks = context.spec.parallel.tensor
    heads, kv_heads = draft.attention.heads, draft.attention.kv_heads
    if heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0):
        return None
    return f"{heads} heads and {kv_heads} KV heads over {ranks} ranks"


def _no_logprobs(context: RuleContext) -> bool:
    return _on_gpu(context, "dflash")


def _attention_data(context: RuleContext) -> bool:
    return _on_gpu(context, "dflash") and context.spec.parallel.attention_data > 1


def _window(context: RuleContext) -> str | None:
    speculation = context.stack.speculation
    window, tokens = speculation.draft_window_tokens.value, speculation.num_draft_tokens.value
    if not _on_gpu(context, "dflash") or window is None or tokens is None or window > tokens:
        return None
    return f"{window} tokens, the block {tokens + 1}"


def _window_ignored(context: RuleContext) -> bool:
    window = context.stack.speculation.draft_window_tokens
    return window.is_set and drafting(context) and not drafting(context, "dflash", "dspark")


def _draft_backend(context: RuleContext) -> str | None:
    word = context.stack.speculation.draft_attention_backend.value
    return word if _on_gpu(context, "dflash") and word is not None and word not in DRAFT_BACKENDS else None


def _fa4_draft_kv(context: RuleContext) -> str | None:
    kv = context.stack.kv
    dtype = kv.draft_dtype.value or kv.dtype.value
    launched = context.launch.value_of("--speculative-draft-attention-backend")
    quantized = dtype is not None and dtype not in UNQUANTIZED
    return dtype if _on_gpu(context, "dflash") and launched == "fa4" and quantized else None


def _rejection_sampling(context: RuleContext) -> bool:
    return drafting(context, "dflash") and context.launch.has("--speculative-use-rejection-sampling")


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-speculation-running-requests",
        severity=Severity.OVERRIDE,
        message=f"Under speculation SGLang lowers the running requests to {RUNNING_REQUESTS} unless told a number.",
        fix="Set serving.max_running_requests.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:437",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_running_requests,
    ),
    Rule(
        id="sglang-dflash-needs-draft",
        severity=Severity.ERROR,
        message="DFlash needs a draft, and the stack names none.",
        fix="Name its checkpoint.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:324",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_no_draft,
    ),
    Rule(
        id="sglang-dflash-draft-heads",
        severity=Severity.ERROR,
        message="The draft's attention does not divide over the ranks: {detail}.",
        fix="Use a tensor-parallel size that divides the draft's heads, or another draft.",
        upstream="sglang 0.5.23 models/dflash.py:215",
        backends=BACKENDS,
        domain=Domain.SPECULATION,
        fires=_draft_heads,
    ),
    Rule(
        id="sglang-dflash-no-logprobs",
        severity=Severity.DEGRADED,
        message="Under DFlash this SGLang answers a request for log probabilities with HTTP 400.",
        fix="Use SGLang 0.5.21, or keep clients that ask for logprobs off this engine.",
        upstream="sglang 0.5.17 speculative/dflash_utils.py:844; gone in 0.5.21",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions="<0.5.21",
        fires=_no_logprobs,
    ),
    Rule(
        id="sglang-dflash-attention-data",
        severity=Severity.ERROR,
        message="Before 0.5.23 SGLang has no DFlash with data-parallel attention.",
        fix="Set parallel.attention_data to 1, or use SGLang 0.5.23.",
        upstream="sglang 0.5.22 arg_groups/speculative_hook.py:297",
        backends=BACKENDS,
        versions="<0.5.23",
        domain=Domain.SPECULATION,
        fires=_attention_data,
    ),
    Rule(
        id="sglang-dflash-attention-data-eager",
        severity=Severity.DEGRADED,
        message="With data-parallel attention the draft runs without CUDA graphs.",
        fix="Use tensor parallelism alone where latency counts.",
        upstream="sglang 0.5.23 speculative/dflash_worker_v2.py:723",
        backends=BACKENDS,
        versions=">=0.5.23",
        fires=_attention_data,
    ),
    Rule(
        id="sglang-dflash-window",
        severity=Severity.ERROR,
        message="The draft's window must hold a block: the window is {detail}.",
        fix="Make the window at least as long as the block.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:430",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        domain=Domain.SPECULATION,
        fires=_window,
    ),
    Rule(
        id="sglang-draft-window-ignored",
        severity=Severity.SILENT,
        message="SGLang gives a window to DFlash drafts only and ignores it for this method.",
        fix="Leave the window out.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:214",
        backends=BACKENDS,
        fires=_window_ignored,
    ),
    Rule(
        id="sglang-dflash-draft-backend",
        severity=Severity.OVERRIDE,
        message="A draft does not run on {detail}; SGLang would take flashinfer with a warning.",
        fix=f"Use one of {', '.join(DRAFT_BACKENDS)}.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:886",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_draft_backend,
    ),
    Rule(
        id="sglang-dflash-fa4-draft-kv",
        severity=Severity.OVERRIDE,
        message="fa4 reads KV of the dtype it computes in: the draft's KV would be BF16 instead of {detail}.",
        fix="Set the draft's KV to bfloat16, or its kernels to flashinfer.",
        upstream="sglang 0.5.23 mem_cache/kv_cache_dtype.py:95",
        backends=BACKENDS,
        fires=_fa4_draft_kv,
    ),
    Rule(
        id="sglang-dflash-rejection-sampling",
        severity=Severity.SILENT,
        message="SGLang accepts --speculative-use-rejection-sampling with DFlash and ignores it.",
        fix="Take it out.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py (only the EAGLE handler reads it)",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_rejection_sampling,
    ),
)
