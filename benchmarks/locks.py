"""Locks that lists of configurations share: one a GPU, and one of the host, which starts share and a quiet measurement
does not."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def alone(locks: Sequence[Path]) -> Iterator[None]:
    """Holds every one of ``locks``. None is held while another is waited for, so that no GPU idles for a list that
    waits for a second one; they are tried in the order of their names, so that no two lists try in turns for ever."""
    files = sorted({file.resolve() for file in locks})
    with ExitStack() as held:
        while (busy := _try(files, held)) is not None:
            held.close()
            with busy.open("w") as waited:
                fcntl.flock(waited, fcntl.LOCK_EX)
        yield


@contextmanager
def held(file: Path | None, *, alone: bool) -> Iterator[None]:
    """Holds ``file``, ``alone`` or with others that do not want it alone; nothing where there is no file."""
    if file is None:
        yield
        return
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def _try(files: Sequence[Path], held: ExitStack) -> Path | None:
    """Take each lock without waiting, into ``held``; the first that somebody else has, or None."""
    for file in files:
        opened = held.enter_context(file.open("w"))
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return file
    return None
