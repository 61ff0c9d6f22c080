"""Engine environments that ``optistack engine install`` made, read back from their marker files."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field

from optistack import paths
from optistack.files import write_whole

MARKER = "optistack-engine.json"


class EngineEnvironment(BaseModel):
    """A finished engine environment.

    ``version`` is the engine's own, ``packages`` every distribution in it by version, ``env`` the variables that the
    engine needs here whatever it is launched for, ``recipe`` the digest of the recipe that it was made by.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    home: Path = Field(exclude=True)
    name: str
    version: str
    backend: str
    python_version: str
    torch_version: str
    env: dict[str, str]
    packages: dict[str, str]
    recipe: str
    installed_at: datetime

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"


def read_environment(home: Path) -> EngineEnvironment | None:
    """The environment at ``home``, or None where it is missing, half-made, or the Python it was made from is gone."""
    try:
        marker = json.loads((home / MARKER).read_text(encoding="utf-8"))
        environment = EngineEnvironment.model_validate({**marker, "home": home})
    except (OSError, ValueError, TypeError):
        return None
    return environment if environment.python.exists() else None


def write_marker(environment: EngineEnvironment) -> None:
    """Declare ``environment`` finished."""
    write_whole(environment.home / MARKER, environment.model_dump_json(indent=2) + "\n")


def installed_engines() -> list[EngineEnvironment]:
    """Every finished environment in the cache, by name, the newest version of each first."""
    folder = paths.engines_dir()
    found = [read_environment(home) for home in folder.iterdir()] if folder.is_dir() else []
    whole = [environment for environment in found if environment is not None]
    whole.sort(key=lambda environment: Version(environment.version), reverse=True)
    return sorted(whole, key=lambda environment: environment.name)
