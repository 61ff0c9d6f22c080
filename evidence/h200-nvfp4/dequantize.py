"""Write a quantized checkpoint as a plain one, dequantized by the plugin's codec, to serve where no engine reads NVFP4.

    python dequantize.py CHECKPOINT PLAIN

Weights that were quantized are float32 in PLAIN, which an engine rounds to its dtype. Needs what logits.py needs.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from logits import plain_copy


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("plain", type=Path)
    given = parser.parse_args()
    given.plain.mkdir()
    layers = plain_copy(given.checkpoint, given.plain, torch.device("cpu"))
    for file in [
        *given.checkpoint.glob("*token*"),
        *given.checkpoint.glob("*.jinja"),
        given.checkpoint / "generation_config.json",
    ]:
        if file.is_file():
            shutil.copy(file, given.plain)
    print(f"{layers} layers dequantized")


if __name__ == "__main__":
    main()
