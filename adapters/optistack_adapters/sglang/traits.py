"""What plugins may reckon with on SGLang."""

from __future__ import annotations

from typing import Any

from optistack.context import EngineFacts

HOST_RESERVE_BYTES = 10 * 1024**3
"""Host RAM that HiCache leaves alone when it allocates (mem_cache/pool_host/base.py, 0.5.17 to 0.5.23)."""

CUDA_PREFILL_TOKENS = 8192
CPU_PREFILL_TOKENS = 2048
"""One prefill pass where the GPU's memory is not known; :mod:`~optistack_adapters.sglang.defaults` suggests a size."""

STORAGE_BACKENDS = ("file", "mooncake", "hf3fs", "nixl", "aibrix", "dynamic", "eic", "simm", "mori", "shm")
SPECULATION_METHODS = ("dflash", "dspark", "eagle", "eagle3", "nextn", "ngram", "standalone")


def engine_facts(version: str, device: str) -> EngineFacts:
    """Traits for ``version`` on ``device`` (``cuda`` or ``cpu``).

    ``aux_hidden_state_copies`` is 1: every supported version packs the captured states into one buffer
    (https://github.com/sgl-project/sglang/pull/28956). ``host_kv_copies`` is ``rank``: each rank mirrors what its own
    GPU holds, so an MLA model's KV lies in host RAM once for each rank. Beside the common traits,
    ``host_tier_reserve_bytes`` of host RAM are left alone by the host tier.
    """
    return EngineFacts(backend="sglang", version=version, device=device, traits=_cpu() if device == "cpu" else _cuda())


def _cuda() -> dict[str, Any]:
    return {
        "aux_hidden_state_copies": 1,
        "default_prefill_tokens": CUDA_PREFILL_TOKENS,
        "host_kv_copies": "rank",
        "host_tier_reserve_bytes": HOST_RESERVE_BYTES,
        "speculation_methods": SPECULATION_METHODS,
        "kv_dtypes": ("bfloat16", "float16", "fp8_e4m3", "fp8_e5m2", "nvfp4"),
        "weight_formats": ("fp32", "bf16", "fp16", "fp8", "mxfp8", "int8", "int4", "nvfp4", "mxfp4"),
        "storage_backends": STORAGE_BACKENDS,
        "host_tier": True,
    }


def _cpu() -> dict[str, Any]:
    """Without the CPU build of sgl-kernel, which no package index has. DFLASH checks the device, NGRAM imports
    ``sgl_kernel``, HiCache pins memory with the CUDA driver: all three were tried on 0.5.23."""
    return {
        "aux_hidden_state_copies": 1,
        "default_prefill_tokens": CPU_PREFILL_TOKENS,
        "host_kv_copies": "rank",
        "host_tier_reserve_bytes": 0,
        "speculation_methods": (),
        "kv_dtypes": ("bfloat16", "float16", "float32", "fp8_e4m3"),
        "weight_formats": ("fp32", "bf16", "fp16"),
        "storage_backends": (),
        "host_tier": False,
    }
