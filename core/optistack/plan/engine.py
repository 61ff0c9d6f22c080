"""Which engine a plan is for: the one that the stack names, one that is installed here, or one that is only known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optistack.backend import Backend
from optistack.context import EngineFacts
from optistack.engines.environment import EngineEnvironment, installed_engines
from optistack.engines.probe import EngineProbe, probe_engine
from optistack.engines.progress import SILENT, Progress
from optistack.engines.snapshots import read_snapshot, snapshot_versions
from optistack.errors import InputError
from optistack.stack.spec import StackSpec
from optistack.versions import within


@dataclass(frozen=True)
class Engine:
    """The engine of a plan.

    ``probe`` is what its own environment says; ``None`` when it is not on this machine. ``snapshot`` is then what was
    written down of that version, if it was, and ``snapshots`` the versions of which something was.
    """

    facts: EngineFacts
    probe: EngineProbe | None
    env: dict[str, str]
    snapshot: EngineProbe | None = None
    snapshots: tuple[str, ...] = ()


def find_engine(spec: StackSpec, backend: Backend, device: str, *, progress: Progress = SILENT) -> Engine:
    """The engine for ``spec`` on ``device`` (``cuda`` or ``cpu``).

    In this order: the Python that the stack names; an environment that ``optistack engine install`` made for this
    device; otherwise the version that the stack names, or the adapter's default, with its snapshot if there is one.
    Raises InputError for an environment without the engine, a broken one, a version that is not supported, or another
    one than the stack names.
    """
    if spec.engine.python is not None:
        engine = _probed(backend, device, Path(spec.engine.python), {}, progress)
        _check_wanted(spec, engine.facts.version, backend)
        return engine
    environment = _environment(spec, backend, device)
    if environment is not None:
        return _probed(backend, device, environment.python, environment.env, progress)
    version = spec.engine.version or backend.default_version
    _check_supported(version, backend)
    snapshot = read_snapshot(backend.snapshots, backend.name, version)
    known = () if snapshot else tuple(snapshot_versions(backend.snapshots, backend.name))
    return Engine(backend.facts(version, device), None, {}, snapshot, known)


def _environment(spec: StackSpec, backend: Backend, device: str) -> EngineEnvironment | None:
    wanted = spec.engine.version
    for environment in installed_engines():
        fits = environment.name.endswith("-cpu") == (device == "cpu") and wanted in (None, environment.version)
        if environment.backend == backend.name and fits:
            return environment
    return None


def _probed(backend: Backend, device: str, python: Path, env: dict[str, str], progress: Progress) -> Engine:
    probe = probe_engine(python, backend.name, supported=backend.supported, env=env, progress=progress)
    if device == "cpu" and probe.device != "cpu":
        raise InputError(
            f"{python} has {probe.distribution} {probe.version}, a build for {probe.device}, and the node is a CPU.",
            fix="Name another node with --node, or the Python of a CPU build with --engine-python.",
        )
    facts = backend.facts(probe.version, device)
    return Engine(facts.model_copy(update={"installed": True, "python": str(python)}), probe, env)


def _check_wanted(spec: StackSpec, version: str, backend: Backend) -> None:
    wanted = spec.engine.version
    # What follows the plus names a build of the same version.
    if wanted is not None and wanted.partition("+")[0] != version.partition("+")[0]:
        raise InputError(
            f"{spec.engine.python} has {backend.name} {version}, and {wanted} is asked for.",
            fix="Leave out --engine-version (engine.version), or name another Python.",
        )


def _check_supported(version: str, backend: Backend) -> None:
    try:
        known = within(version, backend.supported)
    except ValueError as error:
        raise InputError(f"{version!r} is not a version.", fix="Write it like 0.33.0.") from error
    if not known:
        raise InputError(
            f"optistack supports {backend.name} {backend.supported}, not {version}.",
            fix=f"Leave the version out, or name one of these, such as {backend.default_version}.",
        )
