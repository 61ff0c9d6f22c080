"""Flags for KV layout, attention kernels and weight kernels. The values are vLLM's own words already."""

from __future__ import annotations

import json

from optistack.backend import RenderRequest
from optistack_adapters.base import LaunchBuilder, credit


def add_kernels(builder: LaunchBuilder, request: RenderRequest) -> None:
    stack = request.stack
    builder.carry("--kv-cache-dtype", "kv.dtype", stack.kv.dtype)
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
