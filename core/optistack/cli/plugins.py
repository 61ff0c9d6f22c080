"""``optistack plugins``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optistack.cli import options
from optistack.cli.commands import new_app

if TYPE_CHECKING:
    from optistack.host import Host

app = new_app()


@app.command()
def plugins(json: options.Json = False) -> None:
    """List the installed plugins.

    Each with its version, its domain, the hooks that it implements, the commands that it brings, and the error of
    those that do not load.
    """
    from optistack.cli import screen
    from optistack.host import Host

    entries = plugin_entries(Host.from_environment())
    if json:
        screen.print_json(entries)
        return
    from optistack.cli.views.plugins import plugins_view

    screen.show(*plugins_view(entries, wide=screen.is_pipe()))


def plugin_entries(host: Host) -> list[dict[str, Any]]:
    """One object a plugin: those that work in calling order, then those that did not load or are switched off."""
    from optistack.cli.mounted import mount
    from optistack.host import DISABLE_VARIABLE

    mounted = mount(host)
    working = [
        {
            "name": plugin.name,
            "version": plugin.info.version,
            "distribution": plugin.distribution,
            "domain": plugin.info.domain.value,
            "summary": plugin.info.summary,
            "hooks": list(plugin.hooks),
            "commands": mounted.of(plugin.name),
            "error": mounted.problems.get(plugin.name),
        }
        for plugin in host.plugins()
    ]
    unknown: dict[str, Any] = {"version": None, "domain": None, "summary": None, "hooks": [], "commands": []}
    broken = [
        {"name": failure.name, **unknown, "distribution": failure.distribution, "error": failure.error}
        for failure in host.failures
    ]
    off = [
        {"name": name, **unknown, "distribution": None, "error": f"Switched off by {DISABLE_VARIABLE}."}
        for name in host.disabled
    ]
    return [*working, *broken, *off]
