"""The command that the others are part of, and what several of them share."""

from __future__ import annotations

import math
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from optistack.cli.commands import new_app
from optistack.errors import InputError

app = new_app("Convert a checkpoint to NVFP4, look at one, and compare it with what it was made from.")

MIN_SQNR_DB = 10.0
"""Half of what NVFP4 gives Gaussian weights: whatever is below has a wrong scale, or values that NVFP4 cannot hold."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]


def checkpoint_folder(text: str) -> Path:
    """The folder that ``text`` (a path or cache:NAME) names. InputError when there is none."""
    from optistack.stack.references import resolve_checkpoint

    folder = Path(resolve_checkpoint(text, Path.cwd()))
    if not folder.is_dir():
        raise InputError(
            f"There is no folder {text}.", fix="Give the folder of a Hugging Face checkpoint, or cache:NAME."
        )
    return folder


def need_torch() -> None:
    """InputError when the extra ``convert`` is not installed."""
    missing = [name for name in ("torch", "numpy") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"This Python ({sys.executable}) has no {' and no '.join(missing)}, which tensors are converted with.",
            fix="Install the extra, pip install './plugins/quant_nvfp4[convert]' in a clone of the repository, or "
            "install optistack-quant-nvfp4 beside an engine and run python -m optistack_quant_nvfp4 there.",
        )


def check_min_sqnr_db(value: float) -> None:
    """InputError when no measurement could be held against ``value``: NaN or infinity."""
    if not math.isfinite(value):
        raise InputError(f"--min-sqnr-db {value} is no number of dB.", fix="Give one like 10, or leave it out.")


def check_device_name(text: str) -> int | None:
    """The number of the GPU that ``text`` names, None for the processor. InputError when it names no device."""
    found = re.fullmatch(r"cpu|cuda(?::([0-9]+))?", text)
    if found is None:
        raise InputError(f"{text!r} is no device.", fix="Give cpu, cuda or cuda:N.")
    return None if text == "cpu" else int(found.group(1) or 0)


def device_named(text: str) -> object:
    """The torch device ``text``. InputError when this machine, or this torch, has none."""
    import torch

    number, count = check_device_name(text), torch.cuda.device_count()
    if number is not None and number >= count:
        there = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0"
        fix = f"Give {there}, or cpu." if count else "Give --device cpu: this Python's torch sees no GPU."
        raise InputError(f"This machine has no device {text}.", fix=fix)
    return torch.device(text)
