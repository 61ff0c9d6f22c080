"""Flags that only somebody's own ``engine_args`` bring: what vLLM refuses of them, and what they take from the plan."""

from __future__ import annotations

import json
from typing import Any

from optistack.errors import nearest
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.base import USER
from optistack_adapters.vllm.attention import KERNELS, MLA_KERNELS
from optistack_adapters.vllm.rules.attention import OTHER_KERNELS
from optistack_adapters.vllm.rules.reading import method, on_cpu
from optistack_adapters.vllm.speculative import WITHOUT_DRAFT_MODEL

SPECULATION_FLAGS = ("--speculative-config", "--spec-method", "--spec-model", "--spec-tokens", "-sc")
OF_THE_TARGET = (*WITHOUT_DRAFT_MODEL, "mtp", "extract_hidden_states")
"""Methods that need no checkpoint of their own."""

LIMITS = {
    "--max-num-scheduled-tokens": "serving.chunked_prefill_tokens",
    "--max-num-active-seqs": "serving.max_running_requests",
}
"""Flags that stand before another one, and the setting that this one carries."""


def _json(context: RuleContext, flag: str) -> dict[str, Any]:
    """The value of ``flag`` as an object, with its ``flag.key`` parts; empty where it is none: the parser says so."""
    try:
        found = json.loads(context.launch.value_of(flag) or "{}")
    except ValueError:
        found = {}
    parts = {a.flag.partition(".")[2]: a.value for a in context.launch.arguments if a.flag.startswith(f"{flag}.")}
    return {**(found if isinstance(found, dict) else {}), **parts}


def _alone(context: RuleContext) -> str | None:
    launch = context.launch
    wrong = []
    if _json(context, "--eplb-config").get("num_redundant_experts") and not launch.has("--enable-eplb"):
        wrong.append("num_redundant_experts of --eplb-config needs --enable-eplb")
    if launch.value_of("--offload-backend") == "prefetch" and not launch.has("--offload-group-size"):
        wrong.append("--offload-backend prefetch needs --offload-group-size")
    if launch.has("--enable-batch-sharded-sampling") and context.spec.parallel.tensor == 1:
        wrong.append("--enable-batch-sharded-sampling needs more than one rank")
    if launch.has("--enable-elastic-ep") and not launch.has("--enable-eplb"):
        wrong.append("--enable-elastic-ep needs --enable-eplb")
    if launch.has("--enable-log-outputs") and not launch.has("--enable-log-requests"):
        wrong.append("--enable-log-outputs needs --enable-log-requests")
    transfer = _json(context, "--kv-transfer-config")
    if transfer.get("kv_connector") and not transfer.get("kv_role"):
        wrong.append("--kv-transfer-config needs a kv_role")
    longest = _json(context, "--hf-overrides").get("max_position_embeddings")
    if isinstance(longest, int) and longest < (context.stack.serving.context_tokens.value or 0):
        wrong.append("max_position_embeddings of --hf-overrides needs a serving.context_tokens that it allows")
    if context.model.quantization and launch.value_of("--dtype") in ("float32", "float"):
        wrong.append("--dtype float32 needs a checkpoint that is not quantized")
    if launch.has("--enable-auto-tool-choice") and not launch.has("--tool-call-parser"):
        wrong.append("--enable-auto-tool-choice needs --tool-call-parser")
    return "; ".join(wrong) or None


def _limits(context: RuleContext) -> str | None:
    told = [f"{flag} before {setting}" for flag, setting in LIMITS.items() if context.launch.has(flag)]
    return ", ".join(told) or None


def _against(context: RuleContext) -> str | None:
    by_hand = {a.flag: a.value for a in context.launch.arguments if not a.setting and a.source == USER}
    wrong = []
    if context.stack.serving.cuda_graphs.value and "--enforce-eager" in by_hand:
        wrong.append("--enforce-eager against serving.cuda_graphs")
    if context.spec.parallel.attention_data == 1 and by_hand.get("--data-parallel-size", "1") != "1":
        wrong.append("--data-parallel-size against parallel.attention_data and parallel.replicas")
    return ", ".join(wrong) or None


def _by_hand(context: RuleContext) -> str | None:
    flags = [a.flag for a in context.launch.arguments if a.flag.partition(".")[0] in SPECULATION_FLAGS]
    return ", ".join(flags) if flags and method(context) is None else None


def _draft(context: RuleContext) -> str | None:
    if _by_hand(context) is None:
        return None
    config = _json(context, "--speculative-config")
    word = config.get("method") or context.launch.value_of("--spec-method")
    named = config.get("model") or context.launch.value_of("--spec-model")
    if named or (word and (word in OF_THE_TARGET or str(word).endswith("_mtp"))):
        return None
    return str(word or "a draft model")


def _mtp(context: RuleContext) -> bool:
    word = _json(context, "--speculative-config").get("method") or context.launch.value_of("--spec-method")
    layers = context.model.config.get("num_nextn_predict_layers")
    return _by_hand(context) is not None and word == "mtp" and not layers


def _draft_word(context: RuleContext) -> str | None:
    word = context.stack.speculation.draft_attention_backend.value
    known = (*KERNELS, *MLA_KERNELS, *OTHER_KERNELS)
    return None if word is None or word in known or on_cpu(context) else f"{word}. {nearest(word, known)}"


BY_HAND_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-flag-alone",
        severity=Severity.ERROR,
        message="vLLM refuses a flag for want of what it needs: {detail}.",
        fix="Take the flag out of engine_args, or give what it needs.",
        upstream="vllm 0.32 config/parallel.py, config/offload.py:103, config/vllm.py:3079",
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        versions=">=0.32",
        fires=_alone,
    ),
    Rule(
        id="vllm-hand-contradicts",
        severity=Severity.ERROR,
        message="A flag given by hand turns around what the plan promises: {detail}.",
        fix="Take it out of engine_args and change the setting, so that plan, budget and receipt know of it.",
        upstream="vllm 0.33 engine/arg_utils.py",
        backends=("vllm",),
        fires=_against,
    ),
    Rule(
        id="vllm-hand-limits",
        severity=Severity.OVERRIDE,
        message="A limit given by hand goes before what the plan promises (--max-num-batched-tokens, --max-num-seqs): "
        "{detail}.",
        fix="Take it out of engine_args and set serving.chunked_prefill_tokens or serving.max_running_requests.",
        upstream="vllm 0.33 config/scheduler.py",
        backends=("vllm",),
        fires=_limits,
    ),
    Rule(
        id="vllm-hand-speculation",
        severity=Severity.DEGRADED,
        message="Speculation is asked for by hand ({detail}): its weights and KV are not in the memory budget, and no "
        "probe looks at it.",
        fix="Use a speculation plugin instead.",
        upstream="vllm 0.33 config/speculative.py",
        backends=("vllm",),
        fires=_by_hand,
    ),
    Rule(
        id="vllm-hand-draft-missing",
        severity=Severity.ERROR,
        message="Speculation by hand with {detail} needs a draft checkpoint, and none is named.",
        fix="Name it as the model of --speculative-config, or use a speculation plugin.",
        upstream="vllm 0.32 config/speculative.py:1189",
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        fires=_draft,
    ),
    Rule(
        id="vllm-hand-mtp-layers",
        severity=Severity.ERROR,
        message="Speculation by hand with mtp needs prediction layers in the checkpoint, and it has none.",
        fix="Choose another method.",
        upstream="vllm 0.32 config/speculative.py",
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        fires=_mtp,
    ),
    Rule(
        id="vllm-draft-attention-word",
        severity=Severity.ERROR,
        message="vLLM has no such attention kernel for a draft on a GPU: {detail}",
        fix="Leave the draft's attention backend to the plan.",
        upstream="vllm 0.33 v1/attention/backends/registry.py AttentionBackendEnum",
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        fires=_draft_word,
    ),
)
