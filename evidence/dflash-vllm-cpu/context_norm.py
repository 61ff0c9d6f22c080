"""Why vLLM on a CPU accepts fewer drafts than the same vLLM on a GPU: one norm for the context's keys of every layer.

    python3 context_norm.py                     # the kernel by itself, no model
    python3 context_norm.py bench ARGUMENTS...  # evidence/h200-dflash/bench.py with the norm done layer by layer

Run with the Python of a vLLM for CPUs. DFlash's draft normalizes the keys of all its layers in one call of
``rms_norm`` with weights [layers, head size]; the CUDA kernel takes each layer's row, the CPU kernel takes the first.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # so that what is changed here is changed in the engine

import torch


def normed(keys: torch.Tensor, weights: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMS norm over the last dimension, in 32 bits; ``weights`` fit ``keys`` by broadcasting."""
    wide = keys.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon) * weights.float()


def kernel() -> None:
    from vllm import _custom_ops as ops

    torch.manual_seed(0)
    keys = torch.randn(3, 5, 3, 64, dtype=torch.bfloat16)  # layers, tokens, KV heads, head size
    weights = (torch.rand(3, 64) + 0.5).to(torch.bfloat16)
    found = torch.empty_like(keys)
    ops.rms_norm(found, keys, weights, 1e-5)
    for name, wanted in (("its own weights", weights[:, None, None]), ("the first layer's weights", weights[0])):
        off = (found.float() - normed(keys, wanted, 1e-5)).abs().amax((1, 2, 3)).tolist()
        print(f"largest difference of layers 1, 2, 3 from {name}: {', '.join(f'{value:.3f}' for value in off)}")


def layer_by_layer(self: Any, keys: torch.Tensor) -> torch.Tensor:
    pairs = zip(keys, self._k_norm_weights, strict=True)
    return torch.stack([normed(part, weights, self._rms_norm_eps).to(part.dtype) for part, weights in pairs])


def bench() -> None:
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

    DFlashQwen3Model._normalize_context_k = layer_by_layer
    del sys.argv[1]
    runpy.run_path(str(Path(__file__).parents[1] / "h200-dflash" / "bench.py"), run_name="__main__")


if __name__ == "__main__":
    import vllm.platforms

    vllm.platforms.current_platform.import_kernels()
    bench() if sys.argv[1:2] == ["bench"] else kernel()
