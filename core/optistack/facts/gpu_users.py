"""Whether a GPU has one user. Its free memory is that of all of them, and so is a difference of it."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from optistack.facts.detect import nvidia_smi

MEMORY_DEVICE = "/dev/nvidia-uvm"
"""Open in every process that has a CUDA context."""


def sharing(devices: str) -> str:
    """In words, that several programs are on one of ``devices`` (as CUDA_VISIBLE_DEVICES names them); empty where
    nothing shows it.

    An engine's processes are of one session and count as one program. In a container nvidia-smi may list none; then it
    is the programs that this process can see, on whatever GPU.
    """
    listed = (
        nvidia_smi("-i", devices, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader") if devices else None
    )
    by_gpu: dict[str, list[int]] = defaultdict(list)
    for line in (listed or "").splitlines():
        gpu, _, pid = line.partition(",")
        if pid.strip().isdigit():
            by_gpu[gpu].append(int(pid))
    if by_gpu:
        most = max(_programs(pids) for pids in by_gpu.values())
        return f"{most} programs are on its GPU" if most > 1 else ""
    most = _programs(_holders())
    return f"{most} programs use GPUs here" if most > 1 else ""


def _programs(pids: Iterable[int]) -> int:
    return len({_session(pid) for pid in pids})


def _session(pid: int) -> int:
    """One that cannot be seen from here counts for itself."""
    try:
        return os.getsid(pid)
    except OSError:
        return -pid


def _holders() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if MEMORY_DEVICE in _opened(folder / "fd")]


def _opened(descriptors: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for one in descriptors.iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                yield str(one.readlink())
