"""What is known about DFlash beside other settings, whatever adapter says what about its own flags.

Facts of the draft itself are checked in draft.py, while the stack is resolved.
"""

from __future__ import annotations

from optistack.errors import OptistackError
from optistack.facts import load_model
from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_dflash.draft import Draft, read_draft

METHOD = "dflash"
PLAIN = ("bf16", "fp16", "fp32", None)
DELAY_FROM_REQUESTS = 8


def _drafting(context: RuleContext) -> bool:
    return context.stack.speculation.method.value == METHOD


def _on_vllm_cpu(context: RuleContext) -> bool:
    return _drafting(context) and context.engine.device == "cpu"


def _draft_on_vllm_cpu(context: RuleContext) -> Draft | None:
    return _draft(context) if _on_vllm_cpu(context) else None


def _draft(context: RuleContext) -> Draft | None:
    reference = context.stack.speculation.draft_checkpoint.value
    if not _drafting(context) or reference is None:
        return None
    try:
        return read_draft(load_model(reference))
    except OptistackError:
        return None


def _needs_v2_runner(context: RuleContext) -> str | None:
    """What of the draft vLLM's V1 runner lacks, which is the only one without Triton; None where it is not here."""
    draft = _draft_on_vllm_cpu(context)
    if draft is None:
        return None
    if draft.facts.architecture.startswith(("DFlash2", "LiLiCorr")):
        return f"is a {draft.facts.architecture}"
    return "mixes windowed and full attention" if draft.mixed else None


def _norm_of_the_first_layer(context: RuleContext) -> str | None:
    draft = _draft_on_vllm_cpu(context)
    return f"{draft.facts.layers} layers" if draft is not None and draft.facts.layers > 1 else None


def _quantized_on_early_vllm(context: RuleContext) -> str | None:
    """Whose projection of q, k and v is not in 16 bits."""
    draft = _draft(context)
    quantization = draft.facts.quantization if draft is not None else None
    return quantization.method if quantization is not None else None


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


def _no_effect(context: RuleContext) -> str | None:
    flags = ("--speculative-use-block-verification", "--speculative-adaptive")
    return next((flag for flag in flags if context.launch.has(flag)), None) if _drafting(context) else None


def _quantized_draft(context: RuleContext) -> str | None:
    word = context.stack.speculation.draft_quantization.value
    return word if _drafting(context) and word not in (None, "none") else None


def _quantized_head(context: RuleContext) -> str | None:
    word = context.model.precision_of("head")
    return word if _drafting(context) and word not in PLAIN else None


def _held_back(context: RuleContext) -> str | None:
    """SGLang admits a prompt beside running ones only while so many request slots are free, in each attention group."""
    asked, parallel = context.stack.serving.max_running_requests.value, context.spec.parallel
    running = parallel.of_group(asked or 0)
    if not _drafting(context) or running < DELAY_FROM_REQUESTS:
        return None
    free = min(4, max(2, (running + 5) // 6))
    answered = context.launch.has("--min-free-slots-delay")
    fits = parallel.of_group(context.spec.workload.concurrency) - 1 <= running - free
    return None if answered or fits else f"{free} of {running}"


def _prefix_caching_over_gpus(context: RuleContext) -> bool:
    caching = context.stack.serving.prefix_caching.value is not False
    return _drafting(context) and caching and context.engine.device == "cuda" and context.spec.parallel.tensor > 1


RULES = (
    Rule(
        id="dflash-vllm-cpu-runner",
        severity=Severity.ERROR,
        backends=("vllm",),
        domain=Domain.SPECULATION,
        fires=_needs_v2_runner,
        message="The draft {detail}, which needs vLLM's V2 model runner, and that runner needs a GPU.",
        fix="Use a plain DFlash draft here, or leave dflash out with --allow-degraded.",
        upstream="vllm 0.32 config/vllm.py:2955, vllm 0.33 config/vllm.py:3089",
    ),
    Rule(
        id="dflash-vllm-fp8-draft",
        severity=Severity.ERROR,
        backends=("vllm",),
        versions="<0.32",
        domain=Domain.SPECULATION,
        fires=_quantized_on_early_vllm,
        message="The draft's weights are {detail}, and this vLLM multiplies those of q, k and v as if they were not "
        "quantized.",
        fix="Use the draft in BF16, or vLLM 0.32 or later.",
        upstream="vllm 0.26 model_executor/models/qwen3_dflash.py:441, vllm 0.32 qwen3_dflash.py:532",
    ),
    Rule(
        id="dflash-vllm-cpu-context-norm",
        severity=Severity.DEGRADED,
        backends=("vllm",),
        fires=_norm_of_the_first_layer,
        message="The draft has {detail}, and vLLM on a CPU normalizes the context's keys of all of them with the first "
        "one's weights: fewer drafts are accepted than on a GPU (2.73 tokens a step for 2.90 with our drafter).",
        fix="Measure acceptance on a GPU; the answers themselves are not touched. On XPU the same fault is mended.",
        upstream="https://github.com/vllm-project/vllm/pull/56431; vllm 0.32 model_executor/models/qwen3_dflash.py:639",
        evidence=Evidence.OBSERVED,
    ),
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
        id="dflash-sglang-no-effect",
        severity=Severity.SILENT,
        backends=("sglang",),
        fires=_no_effect,
        message="{detail} changes nothing for DFlash: its drafts are greedy and of one length.",
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
        id="dflash-vllm-acceptance-with-prefix-cache",
        severity=Severity.NOTE,
        backends=("vllm",),
        fires=_prefix_caching_over_gpus,
        message="DFlash's acceptance is reported to collapse with prefix caching on some nodes of several GPUs.",
        fix="Set the option min_acceptance_length, so that the receipt fails when it happens.",
        upstream="https://github.com/vllm-project/vllm/issues/47930",
        evidence=Evidence.REPORTED,
    ),
)
