"""How fast a CPU multiplies matrices in float32, BF16 and float16, one thread: GFLOP/s by rows of the left one.

    ENGINE_PYTHON evidence/laptop-vllm-cpu/products.py

The right one has the shape of SmolLM2-135M's gate projection. Rows are tokens of a pass.
"""

from __future__ import annotations

import time

import torch

WIDE, HIDDEN = 1536, 576
SECONDS = 1.0


def gflops(rows: int, dtype: torch.dtype) -> float:
    left, right = torch.randn(rows, HIDDEN).to(dtype), torch.randn(WIDE, HIDDEN).to(dtype)
    torch.nn.functional.linear(left, right)
    start, runs = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        torch.nn.functional.linear(left, right)
        runs += 1
    return 2 * rows * HIDDEN * WIDE * runs / (time.perf_counter() - start) / 1e9


torch.set_num_threads(1)
print(torch.__version__, torch.backends.cpu.get_cpu_capability())
for rows in (1, 8, 128, 512):
    found = {str(dtype): gflops(rows, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)}
    print(rows, " ".join(f"{name.removeprefix('torch.')} {value:.1f}" for name, value in found.items()))
