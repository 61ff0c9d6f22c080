"""Remove the files in /dev/shm that a killed engine has left there: each is RAM that stays taken until the next boot.

An engine ties such a file to its run by name: what stands for ``RUN`` (:mod:`optistack.launch`) in its arguments is
``run_name``, and the engine makes it a part of the file's name. vLLM's host tier with files below it is one
(``vllm_offload_ENGINEID.mmap``): it removes it when it ends by itself only.

Standard library only: the guardian uses this.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SHM = Path("/dev/shm")
GIB = 2**30


def run_name(deployment_id: str, process_name: str) -> str:
    """What one process of one run calls its files in /dev/shm by; no other process and no later run has it."""
    return f"{deployment_id}-{process_name}"


def remove_left(deployment_id: str, process_name: str | None = None) -> tuple[str, ...]:
    """Remove what the run ``deployment_id``, or one process of it, has left; call it once that has ended.

    Returns each file that is gone now, with its size, in words. One that somebody has open or mapped stays.
    """
    part = deployment_id if process_name is None else run_name(deployment_id, process_name)
    removed = []
    with contextlib.suppress(OSError):  # no /dev/shm, or none that may be read: nothing of ours is there
        for file in sorted(SHM.iterdir()):
            if _named(file.name, part) and not _used(file):
                with contextlib.suppress(OSError):
                    size_bytes = file.stat().st_size
                    file.unlink()
                    removed.append(f"{file} ({size_bytes / GIB:.1f} GiB)")
    return tuple(removed)


def _named(name: str, part: str) -> bool:
    """Whether ``part`` is in ``name`` and no digit comes behind it: replica-1 is not replica-10."""
    _, found, rest = name.partition(part)
    return bool(found) and not rest[:1].isdigit()


def _used(file: Path) -> bool:
    """Whether a process that this user may look at has ``file`` open or mapped."""
    return any(_has(process, file) for process in Path("/proc").iterdir() if process.name.isdigit())


def _has(process: Path, file: Path) -> bool:
    # First what is open: one that maps the file and then closes it is missed by neither look.
    return _opened(process, file) or _mapped(process, file)


def _opened(process: Path, file: Path) -> bool:
    with contextlib.suppress(OSError):  # it has just ended, or is somebody else's, whom the file's mode keeps out
        for link in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since, which says nothing of the others
                if link.readlink() == file:
                    return True
    return False


def _mapped(process: Path, file: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.fsencode(file) in (process / "maps").read_bytes()
    return False
