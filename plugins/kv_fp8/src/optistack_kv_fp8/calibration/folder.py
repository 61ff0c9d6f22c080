"""The folder that a calibration writes: taken before the model runs, whole or not there at the end. Needs no torch."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optistack.errors import InputError


def check_out(source: Path, out: Path) -> None:
    """InputError when ``out`` exists, or is inside ``source``."""
    if out.exists() or out.is_symlink():
        raise InputError(f"{out} exists.", fix="Give another --out, or remove it.")
    if out.resolve().is_relative_to(source.resolve()):
        raise InputError(f"{out} is inside the checkpoint.", fix="Give an --out outside of it.")


@contextmanager
def working_folder(source: Path, out: Path) -> Iterator[Path]:
    """An empty folder beside ``out``, ``.NAME.part``, which gets the name ``out`` when the block ends without an error
    and is deleted otherwise. What a killed run left in it is cleared.

    InputError when ``out`` cannot be (:func:`check_out`), when its parent cannot be made or written, and when another
    process has the folder.
    """
    check_out(source, out)
    part = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir(exist_ok=True)
        lock = os.open(part, os.O_RDONLY)
    except OSError as error:
        raise InputError(
            f"{out} cannot be written: {error.strerror or error}.", fix="Give an --out whose parent you may write."
        ) from None
    try:
        _take(lock, part, out)
        try:
            for left in part.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            yield part
            check_out(source, out)
            part.rename(out)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    finally:
        os.close(lock)


def _take(lock: int, part: Path, out: Path) -> None:
    """Lock ``part``, which is open as ``lock``. InputError when it is locked, or was renamed before it could be."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        same = part.exists() and os.path.samestat(part.stat(), os.fstat(lock))
    except BlockingIOError:
        same = False
    if not same:
        raise InputError(f"Another process calibrates to {out} now.", fix="Wait for it, or give another --out.")
