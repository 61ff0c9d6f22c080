"""What a checkpoint is made with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optistack.engines.progress import Progress

MANIFEST = "optistack-model.json"
"""Beside the files of a finished checkpoint: what they are, and their digests."""


@dataclass(frozen=True)
class Workshop:
    """Where and with what one checkpoint is made.

    out     the empty folder to fill
    python  a Python whose environment has torch and transformers
    needed  the finished checkpoint that the recipe asked for, None if it asked for none
    log     where programs' output goes
    held    the descriptor of the lock; the programs that are started keep it
    """

    out: Path
    python: Path
    needed: Path | None
    log: Path
    progress: Progress
    held: int
