"""``optistack plugins`` lists what works, what is broken and why; plugins' commands are mounted."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import typer

from optistack import hookimpl
from optistack.plugin import Domain, PluginInfo

Optistack = Callable[..., Any]
Install = Callable[..., None]


def speaker(commands: dict[str, Any]) -> ModuleType:
    """A plugin called ``speaker`` that brings ``commands``."""
    module = ModuleType("speaker")

    @hookimpl
    def optistack_plugin() -> PluginInfo:
        return PluginInfo(name="speaker", domain=Domain.OTHER, version="3.1", summary="Speaks.")

    @hookimpl
    def optistack_commands() -> dict[str, Any]:
        return commands

    vars(module).update(optistack_plugin=optistack_plugin, optistack_commands=optistack_commands)
    return module


def talkative() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def say(word: str) -> None:
        print(f"say {word}")

    return app


def test_installed_plugins_with_their_hooks_and_broken_ones_with_their_error(
    optistack: Optistack, install: Install
) -> None:
    install(broken=ImportError("no module named numpy"), speaker=speaker({"speaker": talkative()}))
    entries = {entry["name"]: entry for entry in optistack("plugins", "--json").json}
    assert entries["speaker"]["hooks"] == ["optistack_commands", "optistack_plugin"]
    assert entries["speaker"]["commands"] == ["speaker"]
    assert (entries["speaker"]["version"], entries["speaker"]["domain"]) == ("3.1", "other")
    assert entries["broken"]["error"] == "ImportError: no module named numpy"
    assert "optistack_lay_out_kv" in entries["kv-fp8"]["hooks"]
    text = optistack("plugins").out
    assert "error: ImportError: no module named numpy" in text
    assert "optistack speaker" in text


def test_one_that_is_switched_off_is_listed_so(optistack: Optistack, monkeypatch: Any) -> None:
    monkeypatch.setenv("OPTISTACK_DISABLE_PLUGINS", "kv-fp8")
    entries = {entry["name"]: entry for entry in optistack("plugins", "--json").json}
    assert "OPTISTACK_DISABLE_PLUGINS" in entries["kv-fp8"]["error"]


def test_a_plugins_command_runs(optistack: Optistack, install: Install) -> None:
    install(speaker=speaker({"speaker": talkative()}))
    ran = optistack("speaker", "hello")
    assert (ran.code, ran.out) == (0, "say hello\n")


def test_a_plugin_cannot_take_a_command_of_optistack(optistack: Optistack, install: Install) -> None:
    install(speaker=speaker({"plan": talkative()}))
    assert "There is no stack file" in optistack("plan").err
    entries = {entry["name"]: entry for entry in optistack("plugins", "--json").json}
    assert entries["speaker"]["error"] == "Its command 'plan' is taken by optistack itself."


def test_commands_that_cannot_be_mounted_take_no_other_down(optistack: Optistack, install: Install) -> None:
    install(speaker=speaker({"speaker": "not an app"}))
    ran = optistack("speaker")
    assert ran.code == 2
    assert "There is no command 'speaker'" in ran.err
    assert "is no typer.Typer" in optistack("plugins").out
