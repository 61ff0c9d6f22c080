"""Folders that are either whole or not there, for one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from optistack.engines.progress import Progress


@contextlib.contextmanager
def only_one(lock: Path, *, progress: Progress, doing: str) -> Iterator[int]:
    """Hold ``lock`` for the block; wait, and say so, while another process holds it.

    Yields the file descriptor that holds the lock. A child that is given it keeps the lock for as long as it lives,
    even where this process is killed, so that nobody works in the same folder as a child left over. The file itself
    stays: to remove a lock file is to let two processes hold two files of one name.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.detail(f"waiting for another process that is {doing}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def folder_in_one_go(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the name ``folder`` when the block ends well, and is removed when it does not.

    What stood at ``folder`` before is replaced. Hold a lock around it: what an earlier holder left half-made is
    removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left_over in folder.parent.glob(f".{folder.name}.*/"):
        shutil.rmtree(left_over)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield made
        made.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
