"""The command that the others are part of, and options that several of them share."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from optistack.cli.commands import new_app
from optistack.errors import InputError

app = new_app("Train a DFlash drafter on what its target writes, and measure how much of it the target accepts.")

TargetOption = Annotated[str, typer.Option("--target", metavar="CKPT", help="The target: a folder or cache:NAME.")]
EndpointOption = Annotated[str, typer.Option("--endpoint", metavar="URL", help="The running engine.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DraftArgument = Annotated[Path, typer.Argument(metavar="DRAFT", help="The drafter's folder; it is not changed.")]


def checkpoint_folder(text: str) -> Path:
    """The folder that ``text`` (a path or cache:NAME) names. InputError when it is none."""
    from optistack.stack.references import resolve_checkpoint

    folder = Path(resolve_checkpoint(text, Path.cwd()))
    if not (folder / "config.json").is_file():
        raise InputError(f"{text} is no checkpoint's folder.", fix="Give a folder with a config.json, or cache:NAME.")
    return folder


def need_training() -> None:
    """InputError when the extra ``train`` is not installed."""
    missing = [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"This Python ({sys.executable}) has no {' and no '.join(missing)}, which a drafter is made with.",
            fix="Install the extra, pip install './plugins/dflash[train]' in a clone of the repository, or install "
            "optistack-dflash beside an engine and run python -m optistack_dflash there.",
        )
