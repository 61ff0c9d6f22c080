"""Every engine that is installed here, can be, or is known by its flags alone."""

from __future__ import annotations

from typing import Any

from optistack.backend import backend_names, get_backend
from optistack.engines.environment import installed_engines
from optistack.engines.recipes import RECIPES
from optistack.engines.snapshots import snapshot_versions


def known_engines() -> list[dict[str, Any]]:
    """An object for each engine and version.

    ``state`` is ``installed`` (then with ``python`` and ``torch_version``), ``installable``, or ``snapshot``: plans for
    this version are checked against its flags, and applied where its ``python`` is named.
    """
    there: list[dict[str, Any]] = [
        {
            "name": engine.name,
            "version": engine.version,
            "backend": engine.backend,
            "state": "installed",
            "python": str(engine.python),
            "torch_version": engine.torch_version,
        }
        for engine in installed_engines()
    ]
    have = {(engine["name"], engine["version"]) for engine in there}
    possible = [(r.name, r.version, r.backend, "installable") for r in RECIPES if (r.name, r.version) not in have]
    snapshots = [
        (name, version, name, "snapshot")
        for name in backend_names()
        for version in snapshot_versions(get_backend(name).snapshots, name)
    ]
    keys = ("name", "version", "backend", "state")
    return [*there, *({**dict(zip(keys, known, strict=True)), "python": None} for known in (*possible, *snapshots))]
