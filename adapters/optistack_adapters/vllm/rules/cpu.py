"""What the CPU build lacks or does differently."""

from __future__ import annotations

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.vllm.rules.reading import is_mla, kv_dtype, on_cpu

FP8_HEAD_MULTIPLE = 32
MLA_PAGE = 16
NARROW = {"avx2": "AVX2 but no AVX-512", "other": "neither"}
"""What to say of CPUs whose instructions are not enough for FP8 KV."""


def _host_tier(context: RuleContext) -> bool:
    return on_cpu(context) and bool(context.stack.tiers)


def _nvfp4_asked(context: RuleContext) -> str | None:
    weights = context.stack.quantization
    asked = {
        name: value.value
        for name in ("experts", "shared_experts", "dense")
        if (value := getattr(weights, name)).value == "nvfp4"
    }
    return ", ".join(asked) if on_cpu(context) and asked else None


def _nvfp4_checkpoint(context: RuleContext) -> str | None:
    parts = {part.name for part in context.model.components if part.precision == "nvfp4"}
    return ", ".join(sorted(parts)) if on_cpu(context) and parts else None


def _mla_fp8(context: RuleContext) -> bool:
    return on_cpu(context) and is_mla(context) and str(kv_dtype(context)).startswith("fp8")


def _fp8_head(context: RuleContext) -> str | None:
    head = context.model.attention.head_dim
    if not on_cpu(context) or is_mla(context) or not str(kv_dtype(context)).startswith("fp8"):
        return None
    return str(head) if head % FP8_HEAD_MULTIPLE else None


def _fp8_isa(context: RuleContext) -> str | None:
    asked = on_cpu(context) and str(kv_dtype(context)).startswith("fp8")
    return NARROW.get(context.node.cpu_isa or "") if asked else None


def _slow_bf16(context: RuleContext) -> bool:
    """Of AVX2 alone: a CPU of another kind than x86 may have instructions for BF16."""
    return on_cpu(context) and context.node.cpu_isa == "avx2" and context.model.dtype == "bfloat16"


def _mla_prefix(context: RuleContext) -> bool:
    return on_cpu(context) and is_mla(context) and context.stack.serving.prefix_caching.value is True


def _kv_memory(context: RuleContext) -> bool:
    return on_cpu(context) and context.spec.serving.kv_memory_gib is None


def _attention_backend(context: RuleContext) -> str | None:
    asked = (context.stack.serving.attention_backend.value, context.stack.speculation.draft_attention_backend.value)
    others = [word for word in asked if word is not None and not word.startswith("CPU")]
    return " and ".join(dict.fromkeys(others)) if on_cpu(context) and others else None


def _mla_page(context: RuleContext) -> str | None:
    page = context.stack.kv.page_size_tokens.value
    return str(page) if on_cpu(context) and is_mla(context) and page not in (None, MLA_PAGE) else None


def _mla_passes(context: RuleContext) -> str | None:
    tokens, longest = context.stack.serving.chunked_prefill_tokens.value, context.stack.serving.context_tokens.value
    if not on_cpu(context) or not is_mla(context) or tokens is None or longest is None or tokens >= longest:
        return None
    return f"{longest} instead of {tokens}"


def _graphs(context: RuleContext) -> bool:
    return on_cpu(context) and context.stack.serving.cuda_graphs.value is True


def _switched_off(context: RuleContext) -> str | None:
    given = [flag for flag in ("--async-scheduling", "--enable-dbo") if context.launch.has(flag)]
    return " and ".join(given) if on_cpu(context) and given else None


def _refused(context: RuleContext) -> str | None:
    given = [flag for flag in ("--enable-sleep-mode", "--enable-eplb") if context.launch.has(flag)]
    return " and ".join(given) if on_cpu(context) and given else None


CPU_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-cpu-host-tier",
        severity=Severity.ERROR,
        message="vLLM on a CPU has no KV tiers below the device: KV is in host RAM already.",
        fix="Leave the cache plugin out here, or give --allow-degraded.",
        upstream="vllm 0.33 v1/kv_offload/cpu/spec.py: only CUDA-alike and XPU",
        fires=_host_tier,
        evidence=Evidence.READ,
        backends=("vllm",),
        domain=Domain.CACHE,
    ),
    Rule(
        id="vllm-cpu-nvfp4",
        severity=Severity.ERROR,
        message="vLLM on a CPU has no NVFP4 kernels, not even emulated ones; the stack asks for them in {detail}.",
        fix="Leave the quantization plugin out here, or give --allow-degraded.",
        upstream="vllm 0.33 model_executor/kernels/linear/__init__.py: no CPU entry for NVFP4",
        fires=_nvfp4_asked,
        backends=("vllm",),
        domain=Domain.QUANTIZATION,
    ),
    Rule(
        id="vllm-cpu-nvfp4-checkpoint",
        severity=Severity.ERROR,
        message="This checkpoint has NVFP4 weights ({detail}), and vLLM on a CPU has no kernels for them.",
        fix="Use a checkpoint in BF16, FP8 or INT4, or a node with GPUs.",
        upstream="vllm 0.33 model_executor/kernels/linear/__init__.py: no CPU entry for NVFP4",
        fires=_nvfp4_checkpoint,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-cpu-mla-fp8-kv",
        severity=Severity.ERROR,
        message="vLLM on a CPU has no FP8 KV for MLA models.",
        fix="Leave the KV plugin out here, or give --allow-degraded.",
        upstream="vllm 0.33 platforms/cpu.py get_attn_backend_cls",
        fires=_mla_fp8,
        backends=("vllm",),
        domain=Domain.KV,
    ),
    Rule(
        id="vllm-cpu-fp8-head",
        severity=Severity.ERROR,
        message="FP8 KV on a CPU needs a head of a multiple of 32 values; this model's has {detail}.",
        fix="Leave the KV plugin out here, or give --allow-degraded.",
        upstream="vllm 0.32 v1/attention/backends/cpu_attn.py",
        fires=_fp8_head,
        backends=("vllm",),
        domain=Domain.KV,
    ),
    Rule(
        id="vllm-cpu-fp8-isa",
        severity=Severity.ERROR,
        message="vLLM has FP8 KV only on a CPU with AVX-512 or AMX, and this one has {detail}.",
        fix="Leave the KV plugin out here (--no-plugin kv-fp8), or give --allow-degraded.",
        upstream="vllm 0.32 v1/attention/backends/cpu_attn.py:540 (NotImplementedError as the engine starts)",
        fires=_fp8_isa,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        domain=Domain.KV,
    ),
    Rule(
        id="vllm-cpu-bf16-isa",
        severity=Severity.DEGRADED,
        message="This CPU has no instructions for BF16: vLLM computes it there several times slower than float32.",
        fix="Serve the model in float32: for SmolLM2 `optistack model fetch smollm2-135m-fp32` and "
        "--set model.checkpoint=cache:smollm2-135m-fp32.",
        upstream="evidence/laptop-vllm-cpu (a matrix product in both, on AVX2)",
        fires=_slow_bf16,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-cpu-mla-prefix-caching",
        severity=Severity.OVERRIDE,
        message="Without AMX, vLLM on a CPU switches prefix caching and chunked prefill off for MLA models and takes "
        "pages of 16 tokens.",
        fix="Use a CPU with AMX or a node with GPUs if prefixes are to be reused.",
        upstream="vllm 0.33 platforms/cpu.py check_and_update_config",
        fires=_mla_prefix,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-cpu-kv-memory",
        severity=Severity.ERROR,
        message="On a CPU the KV pool has no natural size, and vLLM's own is 92% of the machine's RAM.",
        fix="Say how large it may be: serving.kv_memory_gib in the stack file.",
        upstream="vllm 0.33 v1/worker/cpu_worker.py determine_available_memory",
        fires=_kv_memory,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-cpu-attention-backend",
        severity=Severity.OVERRIDE,
        message="vLLM on a CPU has its own attention kernels and passes over {detail} with a line in the log.",
        fix="Leave serving.attention_backend out here.",
        upstream="vllm 0.33 platforms/cpu.py get_attn_backend_cls",
        fires=_attention_backend,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-cpu-mla-page",
        severity=Severity.OVERRIDE,
        message="vLLM on a CPU takes pages of 16 tokens (--block-size) for MLA models, not of {detail}.",
        fix="Leave kv.page_size_tokens out here.",
        upstream="vllm 0.33 platforms/cpu.py check_and_update_config",
        fires=_mla_page,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-cpu-mla-passes",
        severity=Severity.OVERRIDE,
        message="Without chunked prefill a pass takes a whole prompt (--max-num-batched-tokens), and vLLM on a CPU has "
        "none for MLA models: {detail} tokens.",
        fix="Set serving.chunked_prefill_tokens to serving.context_tokens here.",
        upstream="vllm 0.33 platforms/cpu.py check_and_update_config",
        fires=_mla_passes,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-cpu-graphs",
        severity=Severity.OVERRIDE,
        message="There are no CUDA graphs on a CPU: serving.cuda_graphs is passed over.",
        fix="Leave serving.cuda_graphs out here.",
        upstream="vllm 0.33 platforms/cpu.py check_and_update_config",
        fires=_graphs,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-cpu-flags",
        severity=Severity.OVERRIDE,
        message="vLLM on a CPU switches {detail} off.",
        fix="Leave it out here.",
        upstream="vllm 0.33 platforms/cpu.py check_and_update_config",
        fires=_switched_off,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-cpu-refused-flags",
        severity=Severity.ERROR,
        message="vLLM on a CPU refuses {detail}.",
        fix="Leave it out here.",
        upstream="vllm 0.33 config/model.py: sleep mode, config/parallel.py: EPLB",
        fires=_refused,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
)
