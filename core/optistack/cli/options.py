"""Options that several commands share, spelled once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from optistack.stack.overrides import Overrides

DEFAULT_STACK = Path("optistack.yaml")

API_KEY_VARIABLE = "OPTISTACK_API_KEY"
"""Variable with the key of an engine that asks for one."""

Stack = Annotated[Path, typer.Option("--stack", metavar="FILE", help="The stack file.")]
Backend = Annotated[str | None, typer.Option("--backend", metavar="NAME", help="sglang, vllm, or another installed.")]
Node = Annotated[str | None, typer.Option("--node", metavar="NAME", help="Node preset (b200x4, cpu) or detect.")]
EnginePython = Annotated[
    str | None, typer.Option("--engine-python", metavar="PATH", help="Python of the engine's own environment.")
]
EngineVersion = Annotated[
    str | None, typer.Option("--engine-version", metavar="VERSION", help="Engine version to plan for.")
]
Plugins = Annotated[list[str] | None, typer.Option("--plugin", "-p", metavar="NAME", help="Add a plugin. Repeatable.")]
Without = Annotated[
    list[str] | None, typer.Option("--no-plugin", metavar="NAME", help="Leave a plugin out. Repeatable.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="plugin.option=value or serving.port=8000. Repeatable."),
]
EngineArgs = Annotated[
    list[str] | None,
    typer.Option("--engine-arg", metavar="WORD", help="A word for the engine as it is: --engine-arg=--seed=3."),
]
AllowDegraded = Annotated[
    bool, typer.Option("--allow-degraded", help="Leave out plugins that this engine or device lacks.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True)
class Choice:
    """Which stack, changed how: the shared options as given."""

    stack: Path = DEFAULT_STACK
    backend: str | None = None
    node: str | None = None
    engine_python: str | None = None
    engine_version: str | None = None
    plugins: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    engine_args: tuple[str, ...] = ()

    @property
    def python(self) -> str | None:
        """``--engine-python`` as an absolute path."""
        from optistack.stack.references import resolve_python

        return None if self.engine_python is None else resolve_python(self.engine_python, Path.cwd())

    @property
    def overrides(self) -> Overrides:
        from optistack.stack.overrides import Overrides

        given: dict[str, tuple[tuple[str, ...], Any]] = {
            "--backend": (("backend",), self.backend),
            "--node": (("node",), self.node),
            "--engine-python": (("engine", "python"), self.python),
            "--engine-version": (("engine", "version"), self.engine_version),
        }
        keys = {option: key for option, key in given.items() if key[1] is not None}
        return Overrides(
            plugins=self.plugins,
            without=self.without,
            settings=self.settings,
            keys=keys,
            engine_args=self.engine_args,
        )


def choice(
    stack: Path,
    backend: str | None,
    node: str | None,
    engine_python: str | None,
    engine_version: str | None,
    plugins: list[str] | None,
    without: list[str] | None,
    settings: list[str] | None,
    engine_args: list[str] | None = None,
) -> Choice:
    """The shared options of a command as one value."""
    return Choice(
        stack=stack,
        backend=backend,
        node=node,
        engine_python=engine_python,
        engine_version=engine_version,
        plugins=tuple(plugins or ()),
        without=tuple(without or ()),
        settings=tuple(settings or ()),
        engine_args=tuple(engine_args or ()),
    )
