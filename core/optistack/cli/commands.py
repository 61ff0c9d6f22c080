"""The commands by name, imported only when one of them is run.

``optistack --help`` must answer at once, so the summaries stand here and not in the modules.
"""

from __future__ import annotations

import importlib
from itertools import zip_longest
from typing import Any

import typer
from typer.core import TyperGroup

from optistack.errors import InputError, nearest

COMMANDS = {
    "plan": "Show what a stack resolves to: settings, memory, rules and launch.",
    "apply": "Start the engine with the stack and prove what took effect.",
    "verify": "Check an engine that is already running against a stack.",
    "conformance": "Check that an engine answers as the plain model does.",
    "bench": "Measure an engine with coding-agent sessions, and compare results.",
    "status": "List the running deployments.",
    "down": "Stop deployments: those named, or all of them.",
    "explain": "Explain a rule, a flag or a setting.",
    "size": "Compare tensor-parallel sizes: memory, KV tokens, sessions that fit.",
    "schema": "Print the JSON Schema of a stack file, for editors.",
    "plugins": "List the installed plugins.",
    "engines": "List the engines that are installed, can be, or are known by their flags.",
    "engine": "Install an engine into an environment of its own, or list those.",
    "model": "Make a small checkpoint to try things with, or list those.",
    "doctor": "Check this machine, and say what to mend.",
}
"""Name and summary, in the order of the help. The module is ``optistack.cli.<name>``."""

EPILOG = "Plugins may bring commands of their own: `optistack plugins` lists them."


HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def new_app(summary: str | None = None) -> typer.Typer:
    """A command's Typer app; one with subcommands says in ``summary`` what they are for."""
    return typer.Typer(
        rich_markup_mode=None,
        add_completion=False,
        no_args_is_help=summary is not None,
        help=summary,
        context_settings=HELP,
    )


class Commands(TyperGroup):
    """The built-in commands, and behind them those of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command called ``cmd_name``. Raises InputError with the nearest name."""
        command = typer.main.get_command(_built_in(cmd_name) if cmd_name in COMMANDS else _of_plugin(cmd_name))
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def check_values(words: list[str]) -> None:
    """Raise InputError for an option with an empty value. Nobody means one: it comes of a variable that is not set, and
    as a path it would be the folder one is in. What follows ``--`` belongs to somebody else."""
    ours = words[: words.index("--")] if "--" in words else words
    for word, behind in zip_longest(ours, ours[1:]):
        name, equals, value = word.partition("=")
        if name.startswith("-") and (behind == "" or (equals and not value)):
            raise InputError(f"{name} has an empty value.", fix="Give one; is a shell variable unset?")


def _built_in(name: str) -> typer.Typer:
    app: typer.Typer = importlib.import_module(f"optistack.cli.{name}").app
    return app


def _of_plugin(name: str) -> typer.Typer:
    from optistack.cli.mounted import mount
    from optistack.host import Host

    apps = mount(Host.from_environment()).apps
    if name not in apps:
        raise InputError(f"There is no command {name!r}.", fix=nearest(name, [*COMMANDS, *apps]))
    return apps[name]
