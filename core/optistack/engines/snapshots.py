"""Flags of engine versions that were written down ahead, for plans for an engine that is not on this machine.

One JSON file a version, ``<backend>-<version>.json``, in the folder that a backend names. A flag's line leaves out what
most flags have (:data:`USUAL`). ``scripts/snapshot_engine.py`` makes them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from optistack.engines.probe import EngineProbe

USUAL: dict[str, Any] = {"choices": None, "default": None, "min_values": 1, "max_values": 1, "aliases": []}


def snapshot_versions(folder: Path | None, backend: str) -> list[str]:
    """The versions of ``backend`` that ``folder`` has a snapshot of, oldest first."""
    if folder is None:
        return []
    return sorted((path.stem.removeprefix(f"{backend}-") for path in folder.glob(f"{backend}-*.json")), key=Version)


def read_snapshot(folder: Path | None, backend: str, version: str) -> EngineProbe | None:
    """The flags of exactly ``version``; ``None`` where nobody wrote them down. ``packages`` are unknown: empty."""
    same = next((known for known in snapshot_versions(folder, backend) if Version(known) == Version(version)), None)
    if folder is None or same is None:
        return None
    kept = json.loads((folder / f"{backend}-{same}.json").read_text(encoding="utf-8"))
    flags = {name: {**USUAL, **said} for name, said in kept["flags"].items()}
    return EngineProbe.model_validate({**kept["engine"], "packages": {}, "flags": flags})


def snapshot_text(probe: EngineProbe, *, read_in: str, stand_ins: Sequence[str]) -> str:
    """``probe`` as a snapshot's text, a flag a line. ``read_in`` and ``stand_ins`` say what its parser was run with."""
    engine = probe.model_dump(mode="json", exclude={"packages", "flags"})
    told = {"engine": engine, "read_in": read_in, "stand_ins": list(stand_ins)}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in told.items()]
    flags = []
    for name, info in sorted(probe.flags.items()):
        said = {key: value for key, value in info.model_dump(mode="json").items() if value != USUAL[key]}
        flags.append(f"{json.dumps(name)}: {json.dumps(said, separators=(',', ':'))}")
    return "{\n" + ",\n".join([*lines, '"flags": {\n' + ",\n".join(flags) + "\n}"]) + "\n}\n"
