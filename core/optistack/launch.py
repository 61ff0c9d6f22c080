"""How processes are started, every part of it with who set it and why: a replica of the engine, and what stands before.

``Launch`` is one replica. ``FrontLaunch`` is a process that a plugin puts before the replicas, such as a router.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

PORT = "{port}"
"""Stands for the port in arguments; the port is known when the process is started, not when it is planned."""

FOLDER = "{folder}"
"""Stands for the folder of the process, in which its files are written."""

RUN = "{run}"
"""Stands, in arguments, for a word that no other process and no later start has: what an engine names its files in
/dev/shm by. It is filled in when the process is started; what is left there of a killed engine is found by it and
removed (:mod:`optistack.apply.shared_memory`)."""

REPLICA_URL = "{replica.url}"
REPLICA_FOLDER = "{replica.folder}"
"""Stand for a replica's address and folder in an argument of a front, or in a line of its files, which is there once
for each replica then."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    why: str = ""
    reference: str = ""
    setting: str = ""


class LaunchArgument(_Part):
    """A flag, and its value unless it is a switch. ``setting`` is the path of the setting it carries, if any."""

    flag: str
    value: str | None = None


class LaunchVariable(_Part):
    """An environment variable."""

    name: str
    value: str


class LaunchFile(_Part):
    """A file that the process reads, written into its folder."""

    name: str
    content: str


@dataclass(frozen=True)
class Place:
    """What is known of a process when it is started: for a front, also where its replicas are and its further ports."""

    port: int | str
    folder: str
    replicas: Sequence[tuple[str, str]] = ()
    """URL and folder of each."""
    ports: Mapping[str, int | str] = field(default_factory=dict)

    def fill_text(self, text: str) -> str:
        """A file's text; a line with a replica's placeholder is there once for each replica."""
        return "".join(word for line in text.splitlines(keepends=True) for word in self.for_each(line))

    def for_each(self, word: str) -> Iterator[str]:
        """``word`` filled in, once for each replica where it names one."""
        if REPLICA_URL not in word and REPLICA_FOLDER not in word:
            yield self.fill(word)
            return
        for url, folder in self.replicas:
            yield self.fill(word.replace(REPLICA_URL, url).replace(REPLICA_FOLDER, folder))

    def fill(self, word: str) -> str:
        for name, port in self.ports.items():
            word = word.replace(f"{{port.{name}}}", str(port))
        return word.replace(PORT, str(self.port)).replace(FOLDER, self.folder)


class _Process(BaseModel):
    """``python *command *arguments`` in ``variables``, which listens on ``host`` and answers 200 at ``ready_path``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: tuple[str, ...]
    arguments: tuple[LaunchArgument, ...]
    variables: tuple[LaunchVariable, ...] = ()
    files: tuple[LaunchFile, ...] = ()
    host: str = "127.0.0.1"
    ready_path: str = "/health"

    def argv_at(self, python: str, place: Place) -> list[str]:
        """The command line, placeholders filled in."""
        return [python, *self.command, *self._words(place)]

    def argv(self, python: str, *, port: int | str, folder: str) -> list[str]:
        return self.argv_at(python, Place(port, folder))

    def env(self, *, port: int | str, folder: str) -> dict[str, str]:
        place = Place(port, folder)
        return {variable.name: place.fill(variable.value) for variable in self.variables}

    def value_of(self, flag: str) -> str | None:
        """The value of ``flag``, ``""`` for a switch, ``None`` when it is not in the launch."""
        found = next((argument for argument in self.arguments if argument.flag == flag), None)
        if found is None:
            return None
        return found.value or ""

    def has(self, flag: str) -> bool:
        return self.value_of(flag) is not None

    def needs_folder(self) -> bool:
        """Whether it has files, or a word that names its folder."""
        words = [*(argument.value or "" for argument in self.arguments), *(v.value for v in self.variables)]
        return bool(self.files) or any(FOLDER in word for word in words)

    def _words(self, place: Place) -> Iterator[str]:
        for argument in self.arguments:
            if argument.value is None:
                yield place.fill(argument.flag)
            for value in place.for_each(argument.value) if argument.value is not None else ():
                yield place.fill(argument.flag)
                yield value


class Launch(_Process):
    """One replica of the engine, run by the engine's Python."""

    backend: str
    version: str
    replica: int = 0
    gpus: tuple[int, ...] = ()


class FrontLaunch(_Process):
    """A process before the replicas, run by the Python that optistack runs in. Clients talk to it alone.

    ``name``    of the process and its log
    ``source``  the plugin; the host fills it in
    ``ports``   further ports that it needs, all on loopback, each for ``{port.NAME}`` in its arguments
    """

    name: str = Field("front", pattern=r"^[a-z][a-z0-9-]*$")
    source: str = ""
    version: str = ""
    ports: tuple[str, ...] = ()
