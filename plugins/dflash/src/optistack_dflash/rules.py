"""What is known about DFlash beside other settings. Facts of the draft itself are checked in draft.py."""

from __future__ import annotations

from optistack.rules import Evidence, Rule, RuleContext, Severity

METHOD = "dflash"
QUANTIZED = ("nvfp4", "fp8", "int4", "int8", "mxfp4", "mixed")


def _drafting(context: RuleContext) -> bool:
    return context.stack.speculation.method.value == METHOD


def _shorter_block(context: RuleContext) -> str | None:
    tokens = context.stack.speculation.num_draft_tokens
    if not _drafting(context) or tokens.value is None or tokens.at_most is None or tokens.value >= tokens.at_most:
        return None
    return f"{tokens.value} of {tokens.at_most:g}"


def _step_cost(context: RuleContext) -> str | None:
    tokens = context.stack.speculation.num_draft_tokens.value
    if not _drafting(context) or tokens is None:
        return None
    concurrency = context.spec.workload.concurrency
    return f"{concurrency} x {tokens + 1} = {concurrency * (tokens + 1)} tokens"


def _launched(context: RuleContext, *flags: str) -> str | None:
    """The first of ``flags`` that the launch has, in our arguments or the user's own."""
    own = {argument.split("=")[0] for argument in context.spec.engine_args}
    return next((flag for flag in flags if context.launch.has(flag) or flag in own), None)


def _ignored_sampling(context: RuleContext) -> str | None:
    if not _drafting(context):
        return None
    return _launched(context, "--speculative-use-rejection-sampling", "--speculative-adaptive")


def _no_effect(context: RuleContext) -> str | None:
    return _launched(context, "--speculative-use-block-verification") if _drafting(context) else None


def _fp8_draft_kv(context: RuleContext) -> str | None:
    kv = context.stack.kv
    dtype = kv.draft_dtype.value or kv.dtype.value
    return dtype if _drafting(context) and dtype is not None and dtype.startswith("fp8") else None


def _quantized_draft(context: RuleContext) -> str | None:
    word = context.stack.speculation.draft_quantization.value
    return word if _drafting(context) and word not in (None, "none") else None


def _quantized_head(context: RuleContext) -> str | None:
    word = context.model.precision_of("head")
    return word if _drafting(context) and word in QUANTIZED else None


def _held_back(context: RuleContext) -> str | None:
    """SGLang admits prompts only while so many request slots are free (managers/min_free_slots_delayer.py)."""
    running = context.stack.serving.max_running_requests.value
    if not _drafting(context) or running is None or running < 8 or _launched(context, "--min-free-slots-delay"):
        return None
    free = min(4, max(2, (running + 5) // 6))
    if context.spec.workload.concurrency <= running - free + 1:
        return None
    return f"{free} of {running}"


def _small_budget(context: RuleContext) -> str | None:
    stack = context.stack
    tokens, running = stack.speculation.num_draft_tokens.value, stack.serving.max_running_requests.value
    budget = stack.serving.chunked_prefill_tokens.value or context.engine.trait("default_prefill_tokens")
    if not _drafting(context) or tokens is None or running is None or budget is None:
        return None
    left = budget - (tokens - 1) * running
    return f"{left} of {budget}" if left < budget // 2 else None


def _without_lm_head(context: RuleContext) -> bool:
    spread = context.spec.parallel.attention_data > 1
    return _drafting(context) and spread and _launched(context, "--enable-dp-lm-head") is None


def _prefix_caching(context: RuleContext) -> bool:
    return _drafting(context) and context.stack.serving.prefix_caching.value is not False


def _prefix_caching_over_gpus(context: RuleContext) -> bool:
    return _prefix_caching(context) and context.engine.device == "cuda" and context.spec.parallel.tensor > 1


RULES = (
    Rule(
        id="dflash-shorter-block",
        severity=Severity.DEGRADED,
        fires=_shorter_block,
        message="The draft proposes {detail} tokens that it was trained to propose; a pass of it costs the same, so "
        "only the verification gets cheaper. SGLang says so in its log only.",
        fix="Leave num_draft_tokens out unless a measurement says otherwise.",
        upstream="sglang 0.5.23 speculative/dflash_worker_v2.py:518",
    ),
    Rule(
        id="dflash-step-cost",
        severity=Severity.NOTE,
        fires=_step_cost,
        message="At the workload's concurrency a step verifies {detail} instead of one a request: drafting pays while "
        "the acceptance length is larger than the ratio of the two step times.",
        fix="Measure both step times; a smaller num_draft_tokens makes the step cheaper and the acceptance shorter.",
        upstream="https://github.com/sgl-project/sglang/issues/29244",
        evidence=Evidence.REPORTED,
    ),
    Rule(
        id="dflash-sglang-sampling-flags",
        severity=Severity.SILENT,
        backends=("sglang",),
        fires=_ignored_sampling,
        message="SGLang accepts {detail} beside DFlash and ignores it: only its EAGLE path reads it.",
        fix="Leave the flag out.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:287",
        evidence=Evidence.OBSERVED,
    ),
    Rule(
        id="dflash-sglang-block-verification",
        severity=Severity.SILENT,
        backends=("sglang",),
        fires=_no_effect,
        message="{detail} changes nothing for DFlash, whose drafts are greedy.",
        fix="Leave the flag out.",
        upstream="sglang 0.5.23 speculative/dflash_worker_v2.py:502",
    ),
    Rule(
        id="dflash-sglang-hidden-states",
        severity=Severity.NOTE,
        backends=("sglang",),
        fires=_drafting,
        message="Requests that ask for return_hidden_states are refused while DFlash drafts.",
        fix="Serve such requests from a replica without the plugin.",
        upstream="sglang 0.5.23 speculative/dflash_utils.py:1110",
    ),
    Rule(
        id="dflash-vllm-sampling-parameters",
        severity=Severity.NOTE,
        backends=("vllm",),
        fires=_drafting,
        message="vLLM refuses requests with min_p or logit_bias while it speculates.",
        fix="Take these parameters out of clients' requests.",
        upstream="vllm 0.26 sampling_params.py:880, vllm 0.33 sampling_params.py:1195",
    ),
    Rule(
        id="dflash-vllm-fp8-draft-kv",
        severity=Severity.DEGRADED,
        backends=("vllm",),
        sm=(100, 103),
        fires=_fp8_draft_kv,
        message="The draft's KV is {detail}: on SM100 vLLM then needs FlashAttention 4 or falls to FlashInfer's path "
        "for attention both ways, which has a history of crashes and wrong drafts.",
        fix="Give the draft's KV bfloat16 (kv-fp8 option draft_dtype).",
        upstream="https://github.com/vllm-project/vllm/pull/48787",
    ),
    Rule(
        id="dflash-quantized-draft",
        severity=Severity.DEGRADED,
        backends=("sglang",),
        fires=_quantized_draft,
        message="The draft is quantized to {detail} while it loads: SGLang's DFlash model does not declare support for "
        "that, and its fused KV path goes off.",
        fix="Set draft_quantization to none; a draft is small.",
        upstream="https://github.com/sgl-project/sglang/pull/28957",
    ),
    Rule(
        id="dflash-quantized-head",
        severity=Severity.DEGRADED,
        backends=("sglang",),
        fires=_quantized_head,
        message="The target's output head, which the draft borrows, is {detail}: SGLang then runs it outside the "
        "draft's CUDA graph.",
        fix="Use a checkpoint whose lm_head is not quantized.",
        upstream="https://github.com/sgl-project/sglang/issues/35534",
    ),
    Rule(
        id="dflash-sglang-admission-delay",
        severity=Severity.DEGRADED,
        backends=("sglang",),
        fires=_held_back,
        message="SGLang admits new prompts only while {detail} request slots are free, so the workload's last requests "
        "wait for others to end.",
        fix="Raise serving.max_running_requests, or pass --min-free-slots-delay 1 in engine_args.",
        upstream="sglang 0.5.23 managers/min_free_slots_delayer.py",
    ),
    Rule(
        id="dflash-sglang-attention-data",
        severity=Severity.ERROR,
        backends=("sglang",),
        fires=_without_lm_head,
        message="With data-parallel attention SGLang's DFlash needs the output head split the same way.",
        fix="Add --enable-dp-lm-head to engine_args, or set parallel.attention_data to 1.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:303",
    ),
    Rule(
        id="dflash-vllm-prefill-budget",
        severity=Severity.DEGRADED,
        backends=("vllm",),
        versions="<0.32",
        fires=_small_budget,
        message="Draft slots leave {detail} tokens of a pass for prefill: vLLM before 0.32 takes num_draft_tokens - 1 "
        "for each request that may run.",
        fix="Lower serving.max_running_requests or raise serving.chunked_prefill_tokens.",
        upstream="vllm 0.26 config/vllm.py:1712",
    ),
    Rule(
        id="dflash-vllm-last-block",
        severity=Severity.DEGRADED,
        backends=("vllm",),
        versions="<0.33",
        fires=_prefix_caching,
        message="Each prefix hit loses its last cached block: vLLM before 0.33 treats DFlash like EAGLE there.",
        fix="Use vLLM 0.33, or reckon with one block of prefill more a request.",
        upstream="https://github.com/vllm-project/vllm/issues/54163",
    ),
    Rule(
        id="dflash-vllm-acceptance-with-prefix-cache",
        severity=Severity.NOTE,
        backends=("vllm",),
        fires=_prefix_caching_over_gpus,
        message="DFlash's acceptance is reported to collapse with prefix caching on some multi-GPU nodes.",
        fix="Set the option min_acceptance_length, so that the receipt fails when it happens.",
        upstream="https://github.com/vllm-project/vllm/issues/47930",
        evidence=Evidence.REPORTED,
    ),
)
