"""The command that the others are part of, and what several of them share."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from optistack.cli.commands import new_app
from optistack.cli.devices import check_device
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


def device_named(text: str) -> object:
    """The torch device ``text``. InputError when this machine, or this torch, has none."""
    import torch

    check_device(text, torch.cuda.device_count())
    return torch.device(text)
