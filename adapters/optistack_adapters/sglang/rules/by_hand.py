"""Flags that only somebody's own ``engine_args`` bring, and that SGLang refuses or turns around by themselves."""

from __future__ import annotations

import json
from collections.abc import Callable

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang.rules.common import BACKENDS, decode_backend, kv_word, number, prefill_backend, said

NEEDS: dict[str, tuple[str, Callable[[RuleContext], bool]]] = {
    "--dcp-comm-backend": (
        "with a2a or fi_a2a needs --dcp-size above 1",
        lambda c: said(c, "--dcp-comm-backend") == "ag_rs" or (number(c, "--dcp-size") or 1) > 1,
    ),
    "--enable-linker-mla-dedup": (
        "needs --enable-unified-cache-external-linker with the backend mooncake",
        lambda c: (
            c.launch.has("--enable-unified-cache-external-linker")
            and said(c, "--unified-cache-external-linker-backend") == "mooncake"
        ),
    ),
    "--enable-prefix-mm-cache": ("needs --encoder-only", lambda c: c.launch.has("--encoder-only")),
    "--enable-tp-lm-head-all-to-all": (
        "needs parallel.attention_data above 1",
        lambda c: c.spec.parallel.attention_data > 1,
    ),
    "--prefill-kv-cache-dequant-dtype": (
        "needs KV in nvfp4",
        lambda c: said(c, "--prefill-kv-cache-dequant-dtype") == "auto" or kv_word(c) == "nvfp4",
    ),
    "--enable-mis": (
        "needs --attention-backend flashinfer",
        lambda c: {prefill_backend(c), decode_backend(c)} == {"flashinfer"},
    ),
    "--enable-encoder-swa-bounded-replay": (
        "needs DeepSeek-V4.1",
        lambda c: c.model.architecture.startswith("DeepseekV4"),
    ),
    "--enable-two-batch-overlap": (
        "needs --moe-a2a-backend or parallel.attention_data above 1",
        lambda c: (said(c, "--moe-a2a-backend") or "none") != "none" or c.spec.parallel.attention_data > 1,
    ),
    "--enable-kv-cache-sharding": (
        "needs --disaggregation-mode prefill",
        lambda c: said(c, "--disaggregation-mode") == "prefill",
    ),
    "--enable-mamba-cache-stochastic-rounding": (
        "needs --mamba-ssm-dtype float16",
        lambda c: said(c, "--mamba-ssm-dtype") == "float16",
    ),
    "--enable-cp-decode-attn-tp": (
        "needs DeepSeek-V4 or GLM with sparse attention",
        lambda c: c.model.architecture.startswith(("DeepseekV4", "GlmMoeDsa")),
    ),
    "--moe-a2a-backend": (
        "pplx needs parallel.attention_data above 1",
        lambda c: said(c, "--moe-a2a-backend") != "pplx" or c.spec.parallel.attention_data > 1,
    ),
    "--speculative-algorithm": (
        "DSPARK needs --speculative-draft-model-path",
        lambda c: said(c, "--speculative-algorithm") != "DSPARK" or c.launch.has("--speculative-draft-model-path"),
    ),
    "--enable-layernorm-sp": (
        "needs more than one rank and a Muse Spark or dense Qwen3 model",
        lambda c: (
            c.spec.parallel.tensor > 1
            and c.model.architecture in ("MuseSparkForConditionalGeneration", "Qwen3ForCausalLM")
        ),
    ),
}
"""Flags, what each needs beside it, and whether that is there."""

RUNNER_QUANTIZATION = {
    "flashinfer_cutlass": ("modelopt_fp4", "modelopt_fp8", "modelopt_mixed"),
    "flashinfer_cutedsl": ("modelopt_fp4", "modelopt_mixed", "nvfp4_online"),
    "flashinfer_trtllm": (
        "modelopt_fp4",
        "nvfp4_online",
        "fp8",
        "modelopt_fp8",
        "modelopt_mixed",
        "compressed-tensors",
    ),
}
"""Words of --quantization that SGLang takes beside these kernels for experts (arg_groups/moe_hook.py:80 to 136)."""


def _alone(context: RuleContext) -> str | None:
    wrong = [f"{flag} {what}" for flag, (what, met) in NEEDS.items() if context.launch.has(flag) and not met(context)]
    return "; ".join(wrong) or None


def _against(context: RuleContext) -> str | None:
    serving, by_hand = context.stack.serving, {a.flag for a in context.launch.arguments if not a.setting}
    wrong = []
    if serving.prefix_caching.value and "--disable-radix-cache" in by_hand:
        wrong.append("--disable-radix-cache against serving.prefix_caching")
    if serving.cuda_graphs.value:
        off = sorted(by_hand & {"--disable-cuda-graph", "--disable-decode-cuda-graph"})
        wrong += [f"{flag} against serving.cuda_graphs" for flag in off]
    if context.spec.parallel.attention_data == 1:
        spread = sorted(by_hand & {"--attn-dp-size", "--enable-dp-attention"})
        wrong += [f"{flag} against parallel.attention_data" for flag in spread]
    return ", ".join(wrong) or None


def _speculation(context: RuleContext) -> str | None:
    word = said(context, "--speculative-algorithm")
    return word if word and context.stack.speculation.method.value is None else None


def _threshold(context: RuleContext) -> bool:
    if said(context, "--radix-eviction-policy") != "tlru":
        return False
    try:
        config = json.loads(said(context, "--radix-eviction-policy-config") or "{}")
        return not float(config.get("threshold", 0)) > float(config.get("next_prompt_estimate", 0))
    except (AttributeError, TypeError, ValueError):
        return True


def _nodes(context: RuleContext) -> str | None:
    nodes = number(context, "--nnodes") or 1
    return str(nodes) if nodes > 1 else None


def _dense_ranks(context: RuleContext) -> str | None:
    ranks = number(context, "--moe-dense-tp-size")
    return str(ranks) if ranks not in (None, 1, context.spec.parallel.tensor) else None


def _expert_groups(context: RuleContext) -> str | None:
    ranks, groups = number(context, "--attn-cp-size") or 1, number(context, "--moe-dp-size") or 1
    return f"{ranks} and {groups}" if groups not in (1, ranks) else None


def _runner(context: RuleContext) -> str | None:
    word, runner = said(context, "--quantization"), said(context, "--moe-runner-backend") or ""
    allowed = RUNNER_QUANTIZATION.get(runner, ())
    wrong = word is not None and allowed and word not in (*allowed, "unquant")
    return f"{runner} takes {', '.join(allowed)}, not {word}" if wrong and context.model.moe is not None else None


def _role(context: RuleContext) -> str | None:
    role = said(context, "--disaggregation-mode") or "null"
    return role if role != "null" else None


def _encoder(context: RuleContext) -> bool:
    return not context.model.multimodal and any(context.launch.has(f) for f in ("--encoder-only", "--language-only"))


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-flag-alone",
        severity=Severity.ERROR,
        message="SGLang refuses a flag for want of what it needs: {detail}.",
        fix="Take the flag out of engine_args, or give what it needs.",
        upstream="sglang 0.5.23 arg_groups: parallel_hook, hicache_hook.py:43, pd_disaggregation_hook.py:307, "
        "kv_cache_hook.py:42, attention_hook.py:574, layernorm_sp_hook.py:132",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.23",
        fires=_alone,
    ),
    Rule(
        id="sglang-hand-contradicts",
        severity=Severity.ERROR,
        message="A flag given by hand turns around what the plan promises: {detail}.",
        fix="Take it out of engine_args and change the setting, so that plan, budget and receipt know of it.",
        upstream="sglang 0.5.23 server_args.py",
        backends=BACKENDS,
        fires=_against,
    ),
    Rule(
        id="sglang-hand-speculation",
        severity=Severity.DEGRADED,
        message="Speculation is asked for by hand ({detail}): its weights and KV are not in the memory budget, and no "
        "probe looks at it.",
        fix="Use a speculation plugin instead.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py",
        backends=BACKENDS,
        fires=_speculation,
    ),
    Rule(
        id="sglang-tlru-threshold",
        severity=Severity.ERROR,
        message="The eviction policy tlru is refused without a threshold above its next_prompt_estimate.",
        fix="Add --radix-eviction-policy-config with both to engine_args, or take the policy out.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:387",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_threshold,
    ),
    Rule(
        id="sglang-many-nodes",
        severity=Severity.ERROR,
        message="--nnodes spreads one engine over {detail} nodes, and optistack plans and starts one.",
        fix="Take --nnodes out of engine_args.",
        upstream="sglang 0.5.23 arg_groups/validation_hook.py:180",
        backends=BACKENDS,
        fires=_nodes,
    ),
    Rule(
        id="sglang-dense-moe-ranks",
        severity=Severity.ERROR,
        message="--moe-dense-tp-size is 1 or the size of the replica, not {detail}.",
        fix="Take it out of engine_args.",
        upstream="sglang 0.5.23 arg_groups/validation_hook.py:211",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_dense_ranks,
    ),
    Rule(
        id="sglang-moe-data-groups",
        severity=Severity.ERROR,
        message="--moe-dp-size is 1 or equal to --attn-cp-size, not as here: {detail}.",
        fix="Take --moe-dp-size out of engine_args.",
        upstream="sglang 0.5.23 arg_groups/parallel_hook.py:191",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_expert_groups,
    ),
    Rule(
        id="sglang-moe-runner-quantization",
        severity=Severity.ERROR,
        message="The kernels for experts do not take the --quantization given by hand: {detail}.",
        fix="Take --quantization out of engine_args: SGLang reads it from the checkpoint.",
        upstream="sglang 0.5.23 arg_groups/moe_hook.py:87",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_runner,
    ),
    Rule(
        id="sglang-encoder-architecture",
        severity=Severity.ERROR,
        message="--encoder-only and --language-only are for models with an encoder, and this one has none.",
        fix="Take them out of engine_args.",
        upstream="sglang 0.5.23 arg_groups/pd_disaggregation_hook.py:373",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_encoder,
    ),
    Rule(
        id="sglang-disaggregation-role",
        severity=Severity.OVERRIDE,
        message="In the role of {detail} SGLang decides anew what the plan promises: CUDA graphs "
        "(serving.cuda_graphs), the prefix cache, how KV is moved (--disaggregation-transfer-backend).",
        fix="Take --disaggregation-mode out of engine_args: optistack plans engines that do both.",
        upstream="sglang 0.5.23 arg_groups/pd_disaggregation_hook.py",
        backends=BACKENDS,
        fires=_role,
    ),
)
