"""What is to be started: plain values, checked when they are made and written beside the running deployment."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from optistack.apply.folder import RESERVED
from optistack.apply.state import STOP_TIMEOUT_S

# A name is a folder name and an argument on the command line, so it may not start with a dot or a dash.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
F = TypeVar("F", dict[str, str], tuple[str, ...])


class ProcessSpec(BaseModel):
    """One process of a deployment: an engine replica or a router.

    ``name``  unique in the deployment; names the log
    ``argv``  the command; ``argv[0]`` is looked up in ``PATH`` when it is not a path
    ``env``  added to the environment of the command that starts it
    ``files``  relative path to text, written into the deployment's folder before the start
    ``cwd``  working directory; ``None`` is the deployment's folder
    ``folders``  relative folders of the deployment's that it wants to be there
    ``host``, ``port``  what it will listen on: checked to be free before the start
    ``ports``  further ports on loopback by name, checked as well
    ``group``  processes of one group stand in for each other: when one of them ends after the start, the deployment
               goes on with the rest
    ``ready_url``  answers 200 once the process is ready
    ``ready_timeout_s``  time it may take until then
    ``stop_timeout_s``  time between SIGTERM and SIGKILL; less where it never served
    ``cause_patterns``  regular expressions of this backend, searched first when the reason of a failure is looked for
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    argv: tuple[str, ...] = Field(min_length=1)
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    folders: tuple[str, ...] = ()
    cwd: Path | None = None
    host: str = "127.0.0.1"
    port: int = Field(ge=1, le=65535)
    ports: dict[str, Annotated[int, Field(ge=1, le=65535)]] = {}
    group: str = ""
    ready_url: str = Field(pattern=r"^https?://[^/\s]+")
    ready_timeout_s: float = Field(default=1800.0, gt=0)
    stop_timeout_s: float = Field(default=STOP_TIMEOUT_S, ge=0)
    cause_patterns: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Where a client on this machine reaches it."""
        scheme, _, rest = self.ready_url.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    @field_validator("files", "folders")
    @classmethod
    def _files_stay_inside(cls, files: F) -> F:
        for name in files:
            path = PurePosixPath(name)
            if path.is_absolute() or not path.parts or ".." in path.parts or path.parts[0] in RESERVED:
                raise ValueError(f"{name!r} is not a path of its own inside the deployment's folder")
        return files

    @field_validator("cause_patterns")
    @classmethod
    def _patterns_compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return patterns


class DeploymentSpec(BaseModel):
    """Everything that is started, watched and stopped together.

    ``endpoints``  base URLs for clients, the router's first
    ``plan``  the plan this came from, opaque here, saved beside
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    processes: tuple[ProcessSpec, ...] = Field(min_length=1)
    plan_hash: str = ""
    endpoints: tuple[str, ...] = ()
    plan: dict[str, Any] = {}

    @model_validator(mode="after")
    def _processes_differ(self) -> DeploymentSpec:
        for what, values in (
            ("name", [process.name for process in self.processes]),
            ("port", [str(port) for process in self.processes for port in (process.port, *process.ports.values())]),
            ("file", [name for process in self.processes for name in process.files]),
        ):
            twice = [value for value, times in Counter(values).items() if times > 1]
            if twice:
                raise ValueError(f"two processes have the same {what}: {twice[0]}")
        return self

    @property
    def stop_timeout_s(self) -> float:
        """The longest time that any of the processes may take to stop."""
        return max(process.stop_timeout_s for process in self.processes)
