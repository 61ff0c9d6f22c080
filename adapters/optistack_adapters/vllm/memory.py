"""The size of the KV pool, in bytes, and the share of a GPU that must be free when the engine starts.

vLLM's own arithmetic is the same in 0.26, 0.32 and 0.33 (v1/worker/gpu_worker.py, v1/worker/utils.py)::

    requested = ceil(gpu_memory_utilization x total)        total as CUDA reports it
    it refuses to start when less than `requested` is free   after CUDA context and NCCL are set up
    KV bytes  = requested - (weights + peak of a profiled pass) - CUDA graphs

With ``--kv-cache-memory-bytes`` the last line is replaced by that figure and the check stays. So both are given: the
plan and the engine then have the same pool to the byte, and an engine that finds less memory than the plan counted on
says so at once and not under load. With ``serving.kv_memory_gib`` no more is asked for than is needed, and two engines
that start together on one GPU can both find it free. A block takes
``page_size_tokens`` times the bytes of a token over all layers, the draft's included as long as both attend to the
full context, and the rest below a whole block is unused (v1/core/kv_cache_planning.py; v1/core/kv_cache_utils.py
before 0.33). On a CPU there is no fraction to give: ``--kv-cache-memory-bytes`` is exact, where
``VLLM_CPU_KVCACHE_SPACE`` takes whole GiB (v1/worker/cpu_worker.py).
"""

from __future__ import annotations

import math

from optistack.backend import RenderRequest
from optistack.facts.node import NodeFacts
from optistack.memory.lines import total
from optistack.memory.request import EngineReserves
from optistack_adapters.base import USER, LaunchBuilder
from optistack_adapters.vllm.reserves import reserves


def add_memory(builder: LaunchBuilder, request: RenderRequest) -> None:
    budget = request.budget
    if request.node.device == "cuda":
        taken = reserves(request.stack, request.model, request.node, request.engine, request.spec)
        builder.flag(
            "--gpu-memory-utilization",
            f"{_fraction(request, taken):.3f}",
            source="plan",
            why=f"{_counted_on(request)}, of what CUDA reports; the pool's size is given in bytes",
            reference="vllm 0.33 v1/worker/utils.py request_memory",
        )
    if budget.kv_bytes:
        given = request.spec.serving.kv_memory_gib
        worker = "gpu_worker" if request.node.device == "cuda" else "cpu_worker"
        builder.flag(
            "--kv-cache-memory-bytes",
            budget.kv_bytes,
            source=USER if given else "plan",
            why=f"serving.kv_memory_gib {given:g}" if given else "the memory budget's KV of each GPU",
            reference=f"vllm 0.33 v1/worker/{worker}.py determine_available_memory",
        )


def _counted_on(request: RenderRequest) -> str:
    if request.spec.serving.kv_memory_gib:
        return (
            "what the engine needs with the KV that serving.kv_memory_gib leaves it; the rest of the GPU may be in use"
        )
    return "what the plan counts on to be free when the engine starts"


def _fraction(request: RenderRequest, taken: EngineReserves) -> float:
    """The whole GPU where the plan gives KV all that is left; only the engine's own need where the user says how much
    KV, so that two engines can share a GPU."""
    whole = memory_fraction(request.node, taken)
    gpu = request.node.gpu
    if not request.spec.serving.kv_memory_gib or gpu is None:
        return whole
    budget = request.budget
    needed = (
        budget.weight_bytes + total(budget.charges) + taken.graphs_bytes + taken.activations_bytes + budget.kv_bytes
    )
    return min(whole, math.ceil(1000 * needed / (gpu.cuda_bytes or gpu.hbm_bytes)) / 1000)


def memory_fraction(node: NodeFacts, taken: EngineReserves) -> float:
    """The fraction of a GPU that is free after context and collectives, less what is left unused; rounded down."""
    gpu = node.gpu
    total = (gpu.cuda_bytes or gpu.hbm_bytes) if gpu else 0
    if total <= 0:
        return 0.0
    free = total - taken.context_bytes - taken.collectives_bytes - taken.unused_bytes
    return max(0.0, math.floor(1000 * free / total) / 1000)
