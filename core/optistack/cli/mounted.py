"""Commands that plugins bring along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import typer

from optistack.cli.commands import COMMANDS
from optistack.errors import OptistackError
from optistack.host import Host


@dataclass
class Mounted:
    """``apps`` by command name, ``owners`` the plugin of each, ``problems`` by plugin: why a command is not there."""

    apps: dict[str, typer.Typer] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def of(self, plugin: str) -> list[str]:
        return [name for name, owner in self.owners.items() if owner == plugin]


def mount(host: Host) -> Mounted:
    """The commands of every plugin. One that cannot be mounted takes nobody else's down; built-in names stay ours."""
    mounted = Mounted()
    for plugin in host.plugins():
        try:
            commands = host.call(plugin, "optistack_commands", Mapping) or {}
        except OptistackError as error:
            mounted.problems[plugin.name] = error.message
            continue
        for name, app in commands.items():
            if not isinstance(name, str) or not isinstance(app, typer.Typer):
                mounted.problems[plugin.name] = f"Its command {name!r} is no typer.Typer."
            elif name in COMMANDS or name in mounted.owners:
                owner = mounted.owners.get(name, "optistack itself")
                mounted.problems[plugin.name] = f"Its command {name!r} is taken by {owner}."
            else:
                mounted.apps[name], mounted.owners[name] = app, plugin.name
    return mounted
