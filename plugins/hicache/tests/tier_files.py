"""Folders as the engines leave them, for tests."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

NOW_S = 2_000_000_000.0
KEY = "smollm2-135m-bfloat16-p64-page_first-tp1-sglang0.5.23-0123456789ab"
MODEL = "-models-smollm2"


def page_hash(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def put(file: Path, size_bytes: int = 4096, *, age_s: float = 0.0, fill: int = 7) -> Path:
    """A file of ``size_bytes``, written and last read ``age_s`` before NOW_S."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes([fill]) * size_bytes)
    os.utime(file, (NOW_S - age_s, NOW_S - age_s))
    return file


def sglang_file(folder: Path, number: int, *, model: str = MODEL, rank: str = "_0_1", pool: str = "") -> Path:
    return folder / f"{page_hash(number)}{pool}_{model}{rank}.bin"


def sglang_tier(folder: Path, sizes: Sequence[int] = (4096, 4096, 4096), **where: str) -> list[Path]:
    """Pages of one model, the first used longest ago, a day apart."""
    last = len(sizes)
    return [
        put(sglang_file(folder, number, **where), size, age_s=86400.0 * (last - number))
        for number, size in enumerate(sizes)
    ]


def vllm_tier(root: Path, sizes: Sequence[int] = (8192, 8192), *, digest: str = "abcdef012345") -> list[Path]:
    base = root / f"_models_smollm2_{digest}"
    base.mkdir(parents=True)
    says = {
        "model_name": "/models/smollm2",
        "dtype": "bfloat16",
        "blocks_per_file": 2,
        "kv_cache_groups": [{"tokens_per_block": 16, "layer_names": ["a"]}],
    }
    (base / "config.json").write_text(json.dumps(says))
    made = []
    for number, size in enumerate(sizes):
        name = page_hash(number)
        file = root / f"{base.name}_r0" / name[:3] / f"{name[3:5]}_g0" / f"{name}.bin"
        made.append(put(file, size, age_s=86400.0 * (len(sizes) - number)))
    return made
