"""Kernels for quantized weights."""

from __future__ import annotations

from optistack.backend import RenderRequest
from optistack_adapters.base import LaunchBuilder
from optistack_adapters.sglang.words import quantization_word


def add_weights(build: LaunchBuilder, request: RenderRequest) -> None:
    """The quantization word, if anybody insists on one, and the kernels of experts and of FP4 linear layers."""
    weights = request.stack.quantization
    build.carry("--quantization", "quantization.engine_quantization", weights.engine_quantization, quantization_word)
    build.carry("--moe-runner-backend", "quantization.moe_backend", weights.moe_backend)
    build.carry("--fp4-gemm-backend", "quantization.fp4_gemm_backend", weights.fp4_gemm_backend)
