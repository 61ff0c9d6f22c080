"""Runs in an engine's environment, for ``snapshot_engine.py``: the flags of another version's source.

The source lies first on the import path. What it lacks in that environment, because it is a wheel for CUDA or of
another release, is made up for here and named in the answer's ``stand_ins``.
"""

from __future__ import annotations

import importlib
import runpy
from typing import Any

GPU = {"gpus": 1, "name": "NVIDIA B200", "sm": 100, "memory_bytes": 183_359 * 2**20, "compute_units": 148}


def run(backend: str, probe: str, gpu_for_vllm: str) -> dict[str, Any]:
    """``probe`` is optistack's ``probe_engine.py``, ``gpu_for_vllm`` the file that fakes a GPU for vLLM."""
    stand_ins = _for_vllm(gpu_for_vllm) if backend == "vllm" else _for_sglang()
    ask: Any = runpy.run_path(probe)
    return {**ask["run"](backend, []), "stand_ins": sorted(stand_ins)}


def _for_sglang() -> set[str]:
    # An older release registers model types that a newer transformers brings itself, which that refuses.
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    mapping = type(auto.CONFIG_MAPPING)
    real, twice = mapping.register, set()

    def register(self: Any, key: str, value: Any, exist_ok: bool = False) -> None:
        if key in self._mapping and not exist_ok:
            twice.add(f"transformers' own {key}")
        real(self, key, value, exist_ok=True)

    mapping.register = register
    return twice


def _for_vllm(gpu: str) -> set[str]:
    # Some choices and defaults ask the platform, and a parser for CUDA is wanted.
    faking: Any = runpy.run_path(gpu)
    used: set[str] = faking["install"](GPU).used
    # 0.26 has looked for a GPU by then.
    setattr(importlib.import_module("vllm.platforms"), "_current_platform", None)  # noqa: B010
    return used
