"""What is known about NVFP4 beside what the adapters know of their engines' quantization words.

File names are of SGLang 0.5.23 and vLLM 0.33.0.
"""

from __future__ import annotations

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, Severity
from optistack_quant_nvfp4 import kernels, predicates

RULES: tuple[Rule, ...] = (
    Rule(
        id="nvfp4-no-cpu-kernel",
        severity=Severity.ERROR,
        message="NVFP4 weights have no kernel on this device.",
        fix="Plan for an NVIDIA GPU, or take quant-nvfp4 and the NVFP4 checkpoint out (--allow-degraded drops it).",
        upstream="vllm model_executor/kernels/linear/__init__.py _POSSIBLE_NVFP4_KERNELS has no CPU entry",
        fires=predicates.cpu,
        domain=Domain.QUANTIZATION,
    ),
    Rule(
        id="nvfp4-weight-only-gpu",
        severity=Severity.DEGRADED,
        message="{detail} has no FP4 tensor cores: NVFP4 saves memory here and is multiplied in BF16.",
        fix="Use a Blackwell GPU for FP4 speed; on Hopper an FP8 checkpoint computes faster.",
        upstream="sglang layers/quantization/fp4_utils.py; vllm fused_moe/oracle/nvfp4.py",
        fires=predicates.no_fp4_cores,
    ),
    Rule(
        id="nvfp4-weight-only-checkpoint",
        severity=Severity.DEGRADED,
        message="The checkpoint quantizes weights alone (W4A16): FP4 tensor cores stay idle.",
        fix="Use a checkpoint with quantized input activations (W4A4).",
        upstream="vllm layers/quantization/modelopt.py ModelOptNvFp4Config._from_config",
        fires=predicates.weight_only_checkpoint,
    ),
    Rule(
        id="vllm-quantization-ignored",
        severity=Severity.OVERRIDE,
        message="{detail}: vLLM uses the checkpoint's.",
        fix="Take --quantization out: vLLM reads the checkpoint.",
        upstream="vllm config/model.py (override_quantization_method)",
        backends=("vllm",),
        fires=predicates.vllm_overrides,
    ),
    Rule(
        id="vllm-quantization-contradicts",
        severity=Severity.ERROR,
        message="{detail}: vLLM does not start.",
        fix="Take --quantization out: vLLM reads the checkpoint.",
        upstream="vllm config/model.py _verify_quantization",
        backends=("vllm",),
        fires=predicates.vllm_refuses,
    ),
    Rule(
        id="sglang-draft-inherits-quantization",
        severity=Severity.OVERRIDE,
        message="The draft inherits --quantization {detail} of the target.",
        fix="Take --quantization out, or add --speculative-draft-model-quantization unquant for a BF16 draft.",
        upstream="sglang arg_groups/serving_hook.py (speculative_draft_model_quantization)",
        evidence=Evidence.OBSERVED,
        backends=("sglang",),
        fires=predicates.draft_inherits,
    ),
    Rule(
        id="sglang-nvfp4-moe-runner",
        severity=Severity.ERROR,
        message="SGLang accepts MoE runner {detail} and has no NVFP4 code for it: the first forward pass fails.",
        fix=f"Use one of {', '.join(kernels.SGLANG_MODELOPT_MOE)}.",
        upstream="sglang layers/quantization/modelopt_quant.py ModelOptNvFp4FusedMoEMethod.apply",
        backends=("sglang",),
        fires=predicates.modelopt_runner,
    ),
    Rule(
        id="sglang-flashinfer-expert-parallel",
        severity=Severity.ERROR,
        message="SGLang's FlashInfer CUTLASS and CuTe DSL experts take expert parallel 1 or all ranks, not {detail}.",
        fix="Set parallel.expert to 1 or to the tensor-parallel size.",
        upstream="sglang arg_groups/moe_hook.py handle_moe_kernel_config",
        evidence=Evidence.OBSERVED,
        backends=("sglang",),
        fires=predicates.expert_parallel,
    ),
    Rule(
        id="vllm-nvfp4-moe-backend",
        severity=Severity.ERROR,
        message="vLLM's NVFP4 experts do not have this MoE backend: {detail}.",
        fix="Set option moe_backend of quant-nvfp4 to one of them.",
        upstream="vllm fused_moe/oracle/nvfp4.py map_nvfp4_backend",
        backends=("vllm",),
        fires=predicates.vllm_moe,
    ),
    Rule(
        id="nvfp4-moe-backend-needs-blackwell",
        severity=Severity.ERROR,
        message="MoE backend {detail} multiplies in FP4, which this GPU cannot.",
        fix="Leave option moe_backend of quant-nvfp4 alone, or set it to marlin.",
        upstream="sglang modelopt_quant.py ModelOptNvFp4FusedMoEMethod; vllm fused_moe/experts/*.py",
        backends=("sglang", "vllm"),
        fires=predicates.needs_blackwell,
    ),
    Rule(
        id="nvfp4-moe-backend-sm100-family",
        severity=Severity.ERROR,
        message="These kernels are built for B200 and B300 only: {detail}.",
        fix="Leave option moe_backend of quant-nvfp4 alone.",
        upstream="vllm fused_moe/experts/trtllm_nvfp4_moe.py; sglang arg_groups/overrides.py",
        backends=("sglang", "vllm"),
        fires=predicates.trtllm_family,
    ),
)
