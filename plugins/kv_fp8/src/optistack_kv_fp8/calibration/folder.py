"""The folder that a calibration writes: taken before the model runs, whole or not there at the end. Needs no torch."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optistack.errors import InputError

MARKER = ".optistack-calibration"
"""Says that a folder is a calibration's and may be cleared."""


def check_out(source: Path, out: Path) -> None:
    """InputError when ``out`` exists, is inside ``source``, or has no folder to be in."""
    if out.exists() or out.is_symlink():
        raise InputError(f"{out} exists.", fix="Give another --out, or remove it.")
    if out.resolve().is_relative_to(source.resolve()):
        raise InputError(f"{out} is inside the checkpoint.", fix="Give an --out outside of it.")
    if not out.parent.is_dir():
        raise InputError(f"There is no folder {out.parent} for {out.name}.", fix="Create it first.")


@contextmanager
def working_folder(source: Path, out: Path) -> Iterator[Path]:
    """A folder beside ``out``, ``.NAME.part``, with nothing but :data:`MARKER` in it, which gets the name ``out`` when
    the block ends without an error and is deleted otherwise. What a killed run left in it is cleared.

    InputError when ``out`` cannot be (:func:`check_out`), when its parent cannot be written, when what has the
    folder's name is not a calibration's, and when another process has the folder.
    """
    check_out(source, out)
    part = out.with_name(f".{out.name}.part")
    try:
        if part.is_symlink() or (part.exists() and not part.is_dir()):
            raise _not_ours(part)
        part.mkdir(exist_ok=True)
        folder = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise InputError(
            f"{out} cannot be written: {error.strerror or error}.", fix="Give an --out whose parent you may write."
        ) from None
    try:
        _take(folder, part, out)
        _clear(folder, part)
        try:
            yield part
            check_out(source, out)
            part.rename(out)
            # After the rename: a run that is killed in between leaves a whole ``out``, not a folder nobody may clear.
            (out / MARKER).unlink(missing_ok=True)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    finally:
        os.close(folder)


def _take(folder: int, part: Path, out: Path) -> None:
    """Lock ``part``, which is open as ``folder``. InputError when it is locked, or was renamed before it could be."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        same = os.path.samestat(part.lstat(), os.fstat(folder))
    except (BlockingIOError, FileNotFoundError):
        same = False
    if not same:
        raise InputError(f"Another process calibrates to {out} now.", fix="Wait for it, or give another --out.")


def _clear(folder: int, part: Path) -> None:
    """Mark ``part``, open as ``folder``, and delete what else is in it. InputError where others' files are in it."""
    names = os.listdir(folder)
    if names and MARKER not in names:
        raise _not_ours(part)
    try:
        os.close(os.open(MARKER, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644, dir_fd=folder))
        with os.scandir(folder) as left:
            for one in list(left):
                if one.name == MARKER:
                    continue
                if one.is_dir(follow_symlinks=False):
                    shutil.rmtree(one.name, dir_fd=folder)
                else:
                    os.unlink(one.name, dir_fd=folder)
    except OSError as error:
        raise InputError(
            f"{part} cannot be cleared: {error.strerror or error}.", fix="Remove it, or give another --out."
        ) from None


def _not_ours(part: Path) -> InputError:
    return InputError(f"{part} is not what a calibration left.", fix="Move it away, or give another --out.")
