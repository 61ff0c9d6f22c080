"""Where recorded tokens lie. Imports no torch: what is missing is known before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from optistack.errors import InputError


def shards_in(folder: Path) -> list[Path]:
    """``folder`` itself if it is a file, else the shards in and below it, in name order. InputError when none are."""
    found = [folder] if folder.is_file() else sorted(folder.rglob("*.safetensors"))
    if not found:
        raise InputError(f"{folder} holds no recorded tokens.", fix="Collect some: `optistack dflash collect`.")
    return found
