"""Commands that plugins bring along."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from optistack.cli.commands import COMMANDS
from optistack.errors import OptistackError
from optistack.host import Host


def plugin_commands(host: Host) -> dict[str, typer.Typer]:
    """The commands of every plugin by name. Built-in names are not up for grabs.

    A plugin whose hook fails brings no command; ``optistack plugins`` says why (:func:`command_problem`).
    """
    found: dict[str, typer.Typer] = {}
    for plugin in host.plugins():
        try:
            commands = host.call(plugin, "optistack_commands", Mapping) or {}
        except OptistackError:
            continue
        for name, app in commands.items():
            if isinstance(app, typer.Typer) and name not in COMMANDS:
                found.setdefault(str(name), app)
    return found


def command_problem(host: Host, name: str) -> str:
    """Why the commands of plugin ``name`` are not mounted; empty when they are, or when it has none."""
    try:
        commands = host.call(host.get(name), "optistack_commands", Mapping) or {}
    except OptistackError as error:
        return error.message
    taken = sorted(command for command in commands if command in COMMANDS)
    if taken:
        return f"optistack has a command {taken[0]} of its own; the plugin's cannot be mounted."
    wrong = sorted(str(command) for command, app in commands.items() if not isinstance(app, typer.Typer))
    return f"Its command {wrong[0]} is no typer.Typer." if wrong else ""
