"""The Hugging Face cache on disk, read without the library and without the network.

Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
(``models--org--name/refs/<revision>`` holds a commit, ``snapshots/<commit>`` its files).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from optistack.errors import InputError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")


def is_hub_id(reference: str) -> bool:
    """Whether ``reference`` has the form of a hub id: ``org/name`` or ``name``."""
    return _ID.fullmatch(reference) is not None and not reference.endswith(".json")


def cache_folder() -> Path:
    """Where the cache is, by the variables that the library follows: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def cached_snapshot(hub_id: str, revision: str | None = None) -> Path | None:
    """The folder of ``hub_id`` at ``revision`` (branch, tag or commit; ``main`` if None), or None if nothing is cached.

    InputError when the model is cached but not at that revision.
    """
    repository = cache_folder() / f"models--{hub_id.replace('/', '--')}"
    snapshots = repository / "snapshots"
    if not snapshots.is_dir():
        return None
    wanted = revision or "main"
    ref = repository / "refs" / wanted
    commit = ref.read_text().strip() if ref.is_file() else wanted
    folder = snapshots / commit
    if folder.is_dir():
        return folder
    known = sorted(entry.name for entry in snapshots.iterdir() if entry.is_dir())
    if not known:
        return None
    raise InputError(
        f"{hub_id} is in the cache ({repository}), but not at revision {wanted!r}; there is {', '.join(known)}.",
        fix=f"Download it with `hf download {hub_id} --revision {wanted}`, or give one of those as the revision.",
    )
