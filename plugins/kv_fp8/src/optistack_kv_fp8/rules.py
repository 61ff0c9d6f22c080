"""What is known about FP8 KV beside what the adapters know of their engines' dtypes and kernels.

File names are of SGLang 0.5.23 and vLLM 0.33.0.
"""

from __future__ import annotations

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, Severity
from optistack_kv_fp8 import predicates

RULES: tuple[Rule, ...] = (
    # Devices
    Rule(
        id="kv-fp8-not-on-device",
        severity=Severity.ERROR,
        message="This engine has no {detail} KV on this device.",
        fix="Take kv-fp8 out of the stack (--allow-degraded drops it).",
        upstream="the adapter's kv_dtypes",
        domain=Domain.KV,
        fires=predicates.not_on_device,
    ),
    # Scales
    Rule(
        id="kv-fp8-unit-scales",
        severity=Severity.DEGRADED,
        message="FP8 KV without calibrated scales: every scale is 1.0, and values out of range are clipped.",
        fix="Calibrate the checkpoint (optistack kv-fp8 calibrate), or compare answers with BF16 KV first: Kimi K2.5 "
        "is vLLM's own example of a model for which 1.0 is not good enough.",
        upstream="https://github.com/vllm-project/vllm-project.github.io/pull/195",
        evidence=Evidence.REPORTED,
        fires=predicates.unit_scales,
    ),
    Rule(
        id="kv-fp8-unit-scales-not-kept",
        severity=Severity.OVERRIDE,
        message="Option scales of kv-fp8 is unit, and engines load the scales that this checkpoint has all the same.",
        fix="Set scales to checkpoint or leave it out.",
        upstream="sglang layers/quantization/kv_cache.py; vllm layers/quantization/kv_cache.py",
        fires=predicates.unit_scales_not_kept,
    ),
    Rule(
        id="kv-fp8-scales-unseen",
        severity=Severity.NOTE,
        message="The metadata says FP8 KV and no weights are at hand: whether they hold scales was not seen.",
        fix="Plan again where the checkpoint is; without scale tensors engines use 1.0 and say so in their log.",
        upstream="vllm layers/quantization/kv_cache.py (scaling factor 1.0)",
        fires=predicates.scales_unseen,
    ),
    Rule(
        id="sglang-mla-kv-scales-unused",
        severity=Severity.SILENT,
        message="SGLang writes FP8 KV of MLA models by a plain cast: the checkpoint's scales do not widen its range.",
        fix="Treat it like unit scales: compare answers with BF16 KV.",
        upstream="sglang mem_cache/memory_pool.py MLATokenToKVPool._write_mla_kv_buffer",
        backends=("sglang",),
        fires=predicates.mla_scales,
    ),
    Rule(
        id="sglang-mla-scales-file",
        severity=Severity.ERROR,
        message="SGLang's MLA models cannot load a file of KV scales: the engine does not start.",
        fix="Leave option scales_file of kv-fp8 out.",
        upstream="sglang model_executor/model_runner_components/load_model_utils.py load_kv_cache_scales",
        backends=("sglang",),
        fires=predicates.sglang_mla_scales_file,
    ),
    Rule(
        id="sglang-kv-scales-left-out",
        severity=Severity.SILENT,
        message="SGLang before 0.5.21 does not load KV scales of compressed-tensors checkpoints: it uses 1.0.",
        fix="Use SGLang 0.5.21 or later, or treat it like unit scales: compare answers with BF16 KV.",
        upstream="sglang 0.5.17 layers/quantization/compressed_tensors/compressed_tensors.py:161-206 (no method for "
        "attention), model_loader/weight_utils.py:1606 (logs 'k_scale is not loaded')",
        evidence=Evidence.OBSERVED,
        backends=("sglang",),
        versions="<0.5.21",
        fires=predicates.sglang_scales_left_out,
    ),
    Rule(
        id="sglang-kv-scales-by-head",
        severity=Severity.SILENT,
        message="SGLang loads one KV scale a layer, and the checkpoint's are by {detail}: it uses 1.0.",
        fix="Calibrate without --per-head.",
        upstream="sglang 0.5.23 layers/quantization/compressed_tensors/compressed_tensors.py:1276 is_supported_scheme",
        backends=("sglang",),
        versions=">=0.5.21",
        fires=predicates.sglang_scales_by_head,
    ),
    Rule(
        id="sglang-scales-file",
        severity=Severity.ERROR,
        message="SGLang cannot use a file of KV scales here: {detail}.",
        fix="Leave option scales_file of kv-fp8 out, and serve a calibrated checkpoint with SGLang 0.5.21 or later.",
        upstream="sglang models/llama.py load_kv_cache_scales sets k_scale to a number and leaves k_scale_float; "
        "0.5.17 layers/attention/flashattention_backend.py:1247, triton_backend.py:1781, flashinfer_backend.py:1321; "
        "0.5.23 model_executor/model_runner_components/load_model_utils.py:123 (fp8_e4m3 alone, drafts too)",
        backends=("sglang",),
        fires=predicates.sglang_scales_file,
    ),
    Rule(
        id="sglang-kv-scales-unused",
        severity=Severity.SILENT,
        message="SGLang's {detail} attention does not use these KV scales: it writes K and V as they are.",
        fix="Treat it like unit scales: compare answers with BF16 KV.",
        upstream="sglang 0.5.23 layers/attention/torch_native_backend.py:299 (set_kv_buffer without scales), "
        "intel_amx_backend.py:262 (k_scale_float, which a file does not set)",
        evidence=Evidence.OBSERVED,
        backends=("sglang",),
        fires=predicates.sglang_scales_unused,
    ),
    Rule(
        id="vllm-mla-kv-scales-unused",
        severity=Severity.SILENT,
        message="vLLM does not load KV scales of MLA models: it looks for them under a name they do not have, and uses "
        "1.0.",
        fix="Treat it like unit scales: compare answers with BF16 KV.",
        upstream="vllm layers/quantization/base_config.py get_cache_scale_mapper (0.32.0 logs 'k_scale is not loaded')",
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        versions=">=0.26",
        fires=predicates.mla_scales,
    ),
    # Kernels that read FP8 worse than one would think
    Rule(
        id="sglang-mla-kv-converted",
        severity=Severity.DEGRADED,
        message="SGLang's {detail} attention turns a layer's whole FP8 pool of an MLA model into BF16 at every step: "
        "FP8 saves memory here and costs time, more with a larger pool.",
        fix="Use trtllm_mla on Blackwell, or flashmla on Hopper, which read FP8 as it is.",
        upstream="sglang layers/attention/flashattention_backend.py, flashinfer_mla_backend.py (get_key_buffer().to)",
        backends=("sglang",),
        fires=predicates.sglang_mla_converts,
    ),
    Rule(
        id="sglang-fa3-long-fp8-kv",
        severity=Severity.NOTE,
        message="Prompts of {detail}: on Hopper, FlashAttention 3 sums FP8 products in less than FP32, which failed "
        "most of a 128k needle test until vLLM mended its copy; SGLang's was not checked.",
        fix="Compare long prompts with BF16 KV before relying on it.",
        upstream="https://github.com/Dao-AILab/flash-attention/pull/2250",
        evidence=Evidence.REPORTED,
        backends=("sglang",),
        sm=(90,),
        fires=predicates.sglang_fa3_long,
    ),
    # Drafts
    Rule(
        id="vllm-draft-kv-model-dtype",
        severity=Severity.ERROR,
        message="vLLM refuses 16-bit KV of another dtype than the model's: the draft's is {detail}.",
        fix="Set option draft_dtype of kv-fp8 to same.",
        upstream="vllm config/vllm.py _reject_mismatched_float_kv_cache",
        backends=("vllm",),
        versions=">=0.33",
        fires=predicates.vllm_draft_dtype,
    ),
)
