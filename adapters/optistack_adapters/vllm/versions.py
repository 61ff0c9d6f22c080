"""What differs between vLLM 0.26 and 0.33 and between CUDA and CPU, as traits that plugins reckon with."""

from __future__ import annotations

from typing import Any

from optistack.context import EngineFacts
from optistack.versions import at_least

GPU_PREFILL_TOKENS = 8192
CPU_PREFILL_TOKENS = 2048
"""What :mod:`~optistack_adapters.vllm.defaults` suggests. vLLM's own default depends on the GPU's memory."""

_METHODS = ("ngram", "draft_model", "eagle", "eagle3", "mtp", "dflash")
_GPU_METHODS = (*_METHODS, "ngram_gpu", "suffix", "dspark")
_REMOVED_METHODS = ("medusa", "mlp_speculator")

_KV_DTYPES = ("bfloat16", "float16", "fp8_e4m3", "fp8_e5m2")
_GPU_WEIGHTS = ("fp32", "bf16", "fp16", "fp8", "mxfp8", "int8", "int4", "nvfp4", "mxfp4")
_CPU_WEIGHTS = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4")


def engine_facts(version: str, device: str) -> EngineFacts:
    """Traits for ``version`` on ``device`` (``cuda`` or ``cpu``).

    ``aux_hidden_state_copies`` is 2 in every supported version: the model returns the captured layers one by one and
    the runner concatenates them (v1/worker/gpu_model_runner.py, v1/worker/gpu/spec_decode/eagle/eagle3_utils.py).

    ``host_kv_copies`` is ``rank`` where every rank of a replica keeps its own copy of KV that all of them hold (MLA
    under tensor parallelism), and ``shared`` from 0.32 on, where one copy is kept as long as all KV is replicated; a
    draft whose KV heads are divided over the ranks brings the copies back
    (distributed/kv_transfer/kv_connector/v1/offloading/config.py, ``replicated_layout``).

    ``host_tier_shm``: before 0.32 only the tier with files below it is a file in /dev/shm, mapped by all workers
    (0.26 v1/kv_offload/tiering/spec.py), and from then on every one (v1/kv_offload/cpu/spec.py, _uses_shared_region).
    """
    traits = _cpu() if device == "cpu" else _cuda(version)
    return EngineFacts(backend="vllm", version=version, device=device, traits=traits)


def _cuda(version: str) -> dict[str, Any]:
    removed = () if at_least(version, "0.33") else _REMOVED_METHODS
    return {
        "aux_hidden_state_copies": 2,
        "default_prefill_tokens": GPU_PREFILL_TOKENS,
        "host_kv_copies": "shared" if at_least(version, "0.32") else "rank",
        "host_tier_shm": "always" if at_least(version, "0.32") else "file",
        "speculation_methods": (*_GPU_METHODS, *removed),
        "kv_dtypes": (*_KV_DTYPES, "nvfp4"),
        "weight_formats": _GPU_WEIGHTS,
        "storage_backends": ("file", "lmcache", "mooncake"),
        "host_tier": True,
    }


def _cpu() -> dict[str, Any]:
    """No Triton, so the V1 runner: no DSpark. The offloading workers need CUDA streams (v1/kv_offload/cpu/spec.py)."""
    return {
        "aux_hidden_state_copies": 2,
        "default_prefill_tokens": CPU_PREFILL_TOKENS,
        "host_kv_copies": "rank",
        "speculation_methods": _METHODS,
        "kv_dtypes": (*_KV_DTYPES, "float32"),
        "weight_formats": _CPU_WEIGHTS,
        "storage_backends": (),
        "host_tier": False,
    }
