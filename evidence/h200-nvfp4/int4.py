"""Write a checkpoint with all its linear layers rounded to INT4 in groups of 32 and kept in BF16: an INT4 source.

    python int4.py CHECKPOINT ROUNDED

For checkpoints of one file with BF16 weights. Needs torch, safetensors and what benchmarks/nvfp4_quality.py needs.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from nvfp4_quality import NEVER, SCOPES, to_int4


def main() -> None:
    source, rounded = map(Path, sys.argv[1:])
    shutil.copytree(source, rounded)
    tensors = load_file(source / "model.safetensors")
    names = [name for name in tensors if any(part in name for part in SCOPES["everything"])]
    layers = [name for name in names if not any(part in name for part in NEVER)]
    tensors |= {name: to_int4(tensors[name]).contiguous() for name in layers}
    (rounded / "model.safetensors").unlink()
    save_file(tensors, rounded / "model.safetensors", {"format": "pt"})
    print(f"{len(layers)} layers rounded")


if __name__ == "__main__":
    main()
