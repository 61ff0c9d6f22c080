"""The KV scales that vLLM's model has after it loaded a checkpoint, and whether they are those that were calibrated.

    python loaded_by_vllm.py CHECKPOINT      (with vLLM's own Python, on a machine without a GPU)

It builds the model and loads the weights as the engine does, and starts no engine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model


def main(folder: str) -> int:
    torch.accelerator.empty_cache = lambda: None  # the loader's call fails outside the engine where there is no GPU
    arguments = EngineArgs(
        model=folder, kv_cache_dtype="fp8_e4m3", max_model_len=128, enforce_eager=True, skip_tokenizer_init=True
    )
    config = arguments.create_engine_config()
    with set_current_vllm_config(config), tempfile.TemporaryDirectory() as scratch:
        init_distributed_environment(1, 0, f"file://{scratch}/rendezvous", 0, backend="gloo")
        initialize_model_parallel(1, 1)
        model = get_model(vllm_config=config)
    loaded = [
        (layer._k_scale_float, layer._v_scale_float) for layer in model.modules() if hasattr(layer, "_k_scale_float")
    ]
    print(f"{len(loaded)} layers, the first {loaded[0]}")
    report = Path(folder) / "kv-calibration.json"
    if not report.is_file():
        return 0
    wanted = [(row["k_scale"][0], row["v_scale"][0]) for row in json.loads(report.read_text())["layers"]]
    same = len(loaded) == len(wanted) and torch.allclose(torch.tensor(loaded), torch.tensor(wanted), rtol=1e-6)
    print("as calibrated" if same else "NOT as calibrated")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
