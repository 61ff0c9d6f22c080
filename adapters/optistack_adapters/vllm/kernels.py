"""Flags for KV layout, attention kernels and weight kernels. The values are vLLM's own words already."""

from __future__ import annotations

import json

from optistack.backend import RenderRequest
from optistack_adapters.base import LaunchBuilder, credit

WORDS = {"float32": "auto"}
"""vLLM has no word for KV in float32, which only a model of that dtype has: its own dtype."""


def add_kernels(builder: LaunchBuilder, request: RenderRequest) -> None:
    stack = request.stack
    if request.model.dtype == "float32" and request.engine.device == "cpu":
        why = "vLLM makes 16 bits of a float32 checkpoint otherwise"
        builder.flag(
            "--dtype", "float32", source="vllm", why=why, reference="vllm 0.32 config/model.py _resolve_auto_dtype"
        )
    builder.carry("--kv-cache-dtype", "kv.dtype", stack.kv.dtype, lambda dtype: WORDS.get(dtype, dtype))
    builder.carry("--block-size", "kv.page_size_tokens", stack.kv.page_size_tokens)
    builder.carry("--attention-backend", "serving.attention_backend", stack.serving.attention_backend)
    prefill = stack.serving.prefill_attention_backend
    if prefill.is_set and request.model.attention.kind == "mla":
        builder.flag(
            "--attention-config",
            json.dumps({"mla_prefill_backend": prefill.value}),
            setting="serving.prefill_attention_backend",
            **credit(prefill),
        )
    weights = stack.quantization
    builder.carry("--quantization", "quantization.engine_quantization", weights.engine_quantization)
    builder.carry("--moe-backend", "quantization.moe_backend", weights.moe_backend)
    builder.carry("--linear-backend", "quantization.fp4_gemm_backend", weights.fp4_gemm_backend)
