"""The codec's arithmetic as Triton kernels: one pass over memory, the bytes of ``optistack_quant_nvfp4.codec``.

They run on a GPU, or on tensors of the CPU under Triton's interpreter (``TRITON_INTERPRET=1``, for tests).
"""

from __future__ import annotations

from optistack_quant_nvfp4.triton_kernels.launch import dequantize, quantize, quantize_fp8, quantize_int4

__all__ = ["dequantize", "quantize", "quantize_fp8", "quantize_int4"]
