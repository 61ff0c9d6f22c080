"""Attention kernels and the KV that they read."""

from __future__ import annotations

from optistack.backend import RenderRequest
from optistack_adapters.base import LaunchBuilder
from optistack_adapters.sglang.words import kv_note, kv_word


def add_attention(build: LaunchBuilder, request: RenderRequest) -> None:
    """Kernels, KV dtype, page size, scales."""
    serving, kv = request.stack.serving, request.stack.kv
    build.carry("--attention-backend", "serving.attention_backend", serving.attention_backend)
    build.carry("--prefill-attention-backend", "serving.prefill_attention_backend", serving.prefill_attention_backend)
    build.carry("--kv-cache-dtype", "kv.dtype", kv.dtype, kv_word, note=kv_note(kv.dtype.value))
    build.carry("--page-size", "kv.page_size_tokens", kv.page_size_tokens)
    build.carry("--quantization-param-path", "kv.scales_file", kv.scales_file)
