"""A checkpoint folder in float32 out of one in BF16. The values are the same."""

import importlib
import json
import shutil
from pathlib import Path

_WEIGHTS, _CONFIG = "model.safetensors", "config.json"


def run(source: str, out: str, files: list[str]) -> None:
    """``files`` of ``source`` are those of the checkpoint, ``config.json`` and one ``model.safetensors`` among them."""
    safetensors = importlib.import_module("safetensors.torch")
    tensors = safetensors.load_file(Path(source, _WEIGHTS))
    safetensors.save_file(
        {name: tensor.float() for name, tensor in tensors.items()}, Path(out, _WEIGHTS), metadata={"format": "pt"}
    )
    for name in files:
        if name != _WEIGHTS:
            shutil.copyfile(Path(source, name), Path(out, name))
    config = json.loads(Path(out, _CONFIG).read_text(encoding="utf-8"))
    Path(out, _CONFIG).write_text(json.dumps({**config, "dtype": "float32"}, indent=2) + "\n", encoding="utf-8")
