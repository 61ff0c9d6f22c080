"""Installing an engine into an environment of its own."""

from __future__ import annotations

import contextlib
import platform
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

from packaging.specifiers import SpecifierSet

from optistack import paths
from optistack.engines.environment import EngineEnvironment, read_environment, write_marker
from optistack.engines.files import only_one
from optistack.engines.pip import PipError, clean_environment, run_pip
from optistack.engines.probe import EngineProbe, probe_engine
from optistack.engines.processes import run_logged
from optistack.engines.progress import SILENT, Progress
from optistack.engines.recipes import Recipe, Stage, find_recipe
from optistack.errors import InputError


def install_engine(
    name: str, *, version: str | None = None, allow_cuda_torch: bool = False, progress: Progress = SILENT
) -> EngineEnvironment:
    """Make the environment of an engine, or return the finished one that is already there.

    ``allow_cuda_torch`` lets an engine for the CPU have PyTorch's build for CUDA where no build for the CPU is to be
    had. Everything that pip prints goes to ``logs/install-NAME-VERSION.log`` in the cache. An interrupted or failed
    install leaves nothing that could be taken for an engine. Raises :class:`InputError` with the reason: no such
    recipe, this Python outside the engine's range, too little disk, or pip's own words.
    """
    recipe = find_recipe(name, version)
    home = paths.engines_dir() / recipe.folder_name
    if ready := _ready(home, recipe):
        return ready
    _check_python(recipe)
    lock = paths.engines_dir() / f".{recipe.folder_name}.lock"
    with only_one(lock, progress=progress, doing=f"installing {recipe.name}") as held:
        if ready := _ready(home, recipe):
            return ready
        if home.exists():
            progress.step(f"Removing what an unfinished or older install left in {home}")
            shutil.rmtree(home)
        _check_disk(recipe)
        try:
            return _Install(recipe, home, progress, held, allow_cuda_torch).run()
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise


def _ready(home: Path, recipe: Recipe) -> EngineEnvironment | None:
    environment = read_environment(home)
    return environment if environment and environment.recipe == recipe.digest else None


def _check_python(recipe: Recipe) -> None:
    if platform.python_version() not in SpecifierSet(recipe.python):
        raise InputError(
            f"{recipe.folder_name} needs Python {recipe.python}, and optistack runs on {platform.python_version()}.",
            fix="Install optistack under a Python in that range.",
        )


def _check_disk(recipe: Recipe) -> None:
    free = shutil.disk_usage(paths.engines_dir()).free
    if free < recipe.disk_bytes:
        raise InputError(
            f"{recipe.folder_name} takes {recipe.disk_bytes / 1e9:.1f} GB of disk, and {paths.engines_dir()} has "
            f"{free / 1e9:.1f} GB free.",
            fix="Free some, or set XDG_CACHE_HOME to a folder on a larger disk.",
        )


def make_venv(home: Path, *, log: Path, held: int) -> None:
    """A virtual environment with pip, of the Python that runs optistack; :class:`InputError` where it cannot be."""
    argv = [sys.executable, "-m", "venv", str(home)]
    if run_logged(argv, log=log, env=clean_environment(), keep_open=(held,)):
        raise InputError(
            f"{sys.executable} could not make a virtual environment ({log} has its output).",
            fix="Install Python's venv module; on Debian and Ubuntu it is the package python3-venv.",
        )


# Compiling all of an engine's 21,000 files takes pip 50 s, and an engine loads a quarter of them: the check that the
# engine loads compiles those, and Python any other on its first import.
_QUICKLY = ("--no-compile", "--progress-bar", "off")


class _Install:
    """One install: the steps share where it happens, what it tells and what it holds."""

    def __init__(self, recipe: Recipe, home: Path, progress: Progress, held: int, allow_cuda_torch: bool) -> None:
        self.recipe = recipe
        self.home = home
        self.python = home / "bin" / "python"
        self.progress = progress
        self.held = held
        self.allow_cuda_torch = allow_cuda_torch
        self.log = paths.cache_dir() / "logs" / f"install-{recipe.folder_name}.log"

    def run(self) -> EngineEnvironment:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("", encoding="utf-8")
        self.progress.step(f"Making a Python {platform.python_version()} environment in {self.home}")
        make_venv(self.home, log=self.log, held=self.held)
        self._renew_pip()
        kept: tuple[str, ...] = ()
        for stage in self.recipe.stages:
            self.progress.step(f"Installing {stage.what}")
            kept += self._install(stage, kept)
        self._remove()
        return self._finish(self._verify())

    def _renew_pip(self) -> None:
        # Optional: the pip that comes with Python 3.11 was seen to take half as long again, and does the same.
        with contextlib.suppress(PipError):
            self._pip(["install", *_QUICKLY, "--upgrade", "pip"])

    def _install(self, stage: Stage, kept: tuple[str, ...]) -> tuple[str, ...]:
        """Install a stage; returns the requirements that it was installed by."""
        try:
            self._pip([*self._words(stage, kept), *stage.requirements])
        except PipError as error:
            missing = ", ".join(name for name in stage.requirements if name in error.missing)
            if not stage.fallback_index or not missing:
                raise self._failed(stage, error.reason) from error
            return self._install_from_fallback(stage, kept, missing)
        return stage.requirements

    def _install_from_fallback(self, stage: Stage, kept: tuple[str, ...], missing: str) -> tuple[str, ...]:
        self.progress.step(f"pip's sources do not have {missing}: asking {stage.fallback_index} too")
        words = self._words(stage, kept)
        try:
            self._pip([*words, *stage.requirements, "--extra-index-url", stage.fallback_index])
        except PipError as error:
            if stage.or_for_cuda and self.allow_cuda_torch:
                other = stage.for_cuda()
                self.progress.step(f"It has none: taking {', '.join(other.requirements)}, built for CUDA")
                return self._install(other, kept)
            allow = ". --allow-cuda-torch takes builds for CUDA instead" if stage.or_for_cuda else ""
            raise self._failed(
                stage,
                error.reason,
                fix=f"{missing} has to come from {stage.fallback_index}, or from a folder that PIP_FIND_LINKS "
                f"names{allow}.",
            ) from error
        return stage.requirements

    def _words(self, stage: Stage, kept: tuple[str, ...]) -> list[str]:
        return ["install", *_QUICKLY, *stage.options, *kept]

    def _remove(self) -> None:
        if self.recipe.removals:
            self.progress.step(
                f"Removing {', '.join(self.recipe.removals)}, whose builds do not load beside this PyTorch"
            )
            try:
                self._pip(["uninstall", "--yes", *self.recipe.removals])
            except PipError as error:
                raise InputError(
                    f"pip could not remove {', '.join(self.recipe.removals)}: {error.reason}.",
                    fix=f"Its whole output is in {self.log}.",
                ) from error

    def _pip(self, arguments: list[str]) -> None:
        run_pip(self.python, arguments, log=self.log, progress=self.progress, keep_open=(self.held,))

    def _verify(self) -> EngineProbe:
        self.progress.step("Checking that the engine loads and reading its flags")
        try:
            return probe_engine(self.python, self.recipe.backend, env=self.recipe.env, load=self.recipe.load)
        except InputError as error:
            raise InputError(
                f"{self.recipe.name} {self.recipe.version} was installed but does not load: {error.message}",
                fix=f"pip's output is in {self.log}.",
            ) from error

    def _finish(self, probe: EngineProbe) -> EngineEnvironment:
        environment = EngineEnvironment(
            home=self.home,
            name=self.recipe.name,
            version=probe.version,
            backend=self.recipe.backend,
            python_version=probe.python_version,
            torch_version=probe.torch_version,
            env=dict(self.recipe.env),
            packages=probe.packages,
            recipe=self.recipe.digest,
            installed_at=datetime.now(UTC).replace(microsecond=0),
        )
        write_marker(environment)
        return environment

    def _failed(self, stage: Stage, reason: str, fix: str = "") -> InputError:
        return InputError(
            f"pip could not install {stage.what}: {reason.rstrip('.')}.",
            fix=fix or f"Its whole output is in {self.log}.",
        )
