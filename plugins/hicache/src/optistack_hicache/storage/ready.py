"""Can a storage tier start here? Looked at before an engine, which notices after a minute or not at all."""

from __future__ import annotations

import os
import subprocess
from itertools import islice
from pathlib import Path

from optistack.facts.node import GIB
from optistack_hicache.storage.names import holding, vllm_folder

LOOKED_AT = 2000
"""Names that are read of a folder: enough to see a second model, and no walk over millions on the way to a plan."""

FULL_BYTES = GIB
PACKAGES = {
    ("sglang", "mooncake"): "mooncake",
    ("sglang", "nixl"): "nixl",
    ("vllm", "mooncake"): "mooncake",
    ("vllm", "lmcache"): "lmcache",
}
"""What a storage tier imports (sglang 0.5.23 mem_cache/storage, vllm 0.33 distributed/kv_transfer/kv_connector)."""


def trouble(directory: Path, quota_bytes: int | None) -> str | None:
    """What keeps a tier from working in ``directory`` on this machine, as a clause; None where nothing does."""
    try:
        return _trouble(directory, quota_bytes)
    except PermissionError:
        return f"{directory} may not be read by this user"
    except OSError as error:
        return f"{directory} cannot be read: {error.strerror or error}"


def _trouble(directory: Path, quota_bytes: int | None) -> str | None:
    there = next(folder for folder in (directory, *directory.parents) if _exists(folder))
    if not there.is_dir():
        return f"{there} is a file"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} may not be written by this user, or is mounted read-only"
    disk = os.statvfs(there)
    size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    if not size:
        return f"the file system of {there} keeps no files: it has no room at all, as /proc and /sys have none"
    if quota_bytes is not None and quota_bytes > size:
        return f"storage_quota_gib is {quota_bytes / GIB:.0f}, and the disk of {there} has {size / GIB:.0f} GiB in all"
    # A tier that filled the disk itself is of use as it is: what it holds is read, and writes that fail are misses.
    if free < FULL_BYTES and not (there == directory and _holds_kv(directory)):
        return f"the disk of {there} is full: {free / GIB:.2f} GiB are free"
    models = _models(directory) if there == directory else set()
    return f"{directory} holds KV of {' and of '.join(sorted(models))}" if len(models) > 1 else None


def _exists(path: Path) -> bool:
    """As ``path.exists()``, which says False instead of PermissionError from Python 3.14 on."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _holds_kv(directory: Path) -> bool:
    """Whether an engine has written to ``directory``, whose name is over the model and all that shapes its KV."""
    with os.scandir(directory) as names:
        return any(holding((one.name,)) or vllm_folder(one.name) for one in islice(names, LOOKED_AT))


def _models(directory: Path) -> set[str]:
    with os.scandir(directory) as names:
        found = [holding((one.name,)) for one in islice(names, LOOKED_AT)]
    return {one.model for one in found if one is not None}


def missing_package(backend: str, storage: str, python: str) -> str | None:
    """The package that ``storage`` needs and the engine's Python does not find; None where it is there or unknown."""
    package = PACKAGES.get((backend, storage))
    if package is None:
        return None
    look = f"import importlib.util, sys; sys.exit(17 if importlib.util.find_spec({package!r}) is None else 0)"
    try:
        done = subprocess.run([python, "-c", look], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return package if done.returncode == 17 else None
