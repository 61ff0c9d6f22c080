"""``Launch``: how one replica of the engine is started, every part of it with who set it and why."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

PORT = "{port}"
"""Stands for the port in arguments; the port is known when the engine is started, not when it is planned."""

FOLDER = "{folder}"
"""Stands for the folder in which the launch's files are written."""


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
    """A file that the engine reads, written into the launch's folder."""

    name: str
    content: str


class Launch(BaseModel):
    """One engine process: ``python *command *arguments`` in ``variables``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str
    version: str
    replica: int = 0
    gpus: tuple[int, ...] = ()
    command: tuple[str, ...]
    arguments: tuple[LaunchArgument, ...]
    variables: tuple[LaunchVariable, ...] = ()
    files: tuple[LaunchFile, ...] = ()
    host: str = "127.0.0.1"
    ready_path: str = "/health"

    def argv(self, python: str, *, port: int | str, folder: str) -> list[str]:
        """The command line, placeholders filled in."""
        return [python, *self.command, *(_fill(word, port, folder) for word in self._words())]

    def env(self, *, port: int | str, folder: str) -> dict[str, str]:
        return {variable.name: _fill(variable.value, port, folder) for variable in self.variables}

    def value_of(self, flag: str) -> str | None:
        """The value of ``flag``, ``""`` for a switch, ``None`` when it is not in the launch."""
        found = next((argument for argument in self.arguments if argument.flag == flag), None)
        if found is None:
            return None
        return found.value or ""

    def has(self, flag: str) -> bool:
        return self.value_of(flag) is not None

    def _words(self) -> Iterator[str]:
        for argument in self.arguments:
            yield argument.flag
            if argument.value is not None:
                yield argument.value


def _fill(word: str, port: int | str, folder: str) -> str:
    return word.replace(PORT, str(port)).replace(FOLDER, folder)
