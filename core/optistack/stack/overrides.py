"""What the command line changes in a stack: ``-p``, ``--no-plugin``, ``--set`` and the options that name one key.

Overrides are put into the document before it is validated, so they are checked like the file itself, and an error
names the option instead of a line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from optistack.errors import OWN_PLUGINS, InputError, how_to_install, nearest, where_to_get
from optistack.stack.document import Document
from optistack.stack.spec import StackSpec


@dataclass(frozen=True)
class Overrides:
    """``plugins`` are added with their default options, ``without`` are taken out, ``settings`` are the texts of
    ``--set``; ``keys`` maps an option of the command line (``--backend``) to the key it sets and its value."""

    plugins: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    keys: dict[str, tuple[tuple[str, ...], Any]] = field(default_factory=dict)
    engine_args: tuple[str, ...] = ()


def apply_overrides(document: Document, overrides: Overrides, installed: Collection[str]) -> None:
    """Change ``document`` as ``overrides`` say; ``installed`` are the plugins that may be named.

    Raises InputError, with the nearest name, for what does not exist.
    """
    if document.data.get("plugins") is None:
        document.data["plugins"] = {}
    used = document.data["plugins"]
    if not isinstance(used, dict):
        return  # the file itself is wrong there, and validation says so
    missing = [name for name in overrides.plugins if name not in installed]
    if len(missing) > 1:
        message, fix = none_of(missing, installed)
        raise InputError(message, fix=fix)
    for name in overrides.plugins:
        if name not in installed:
            raise InputError(f"-p {name}: no plugin is called {name!r}.", fix=where_to_get(name, installed))
        if name not in used:
            document.put(("plugins", name), {}, f"-p {name}")
    for name in overrides.without:
        if name not in used and name not in installed:
            raise InputError(f"--no-plugin {name}: no plugin is called {name!r}.", fix=nearest(name, used))
        if name in overrides.plugins:
            raise InputError(f"-p {name} and --no-plugin {name} contradict each other.", fix="Leave one out.")
        used.pop(name, None)
    for option, (path, value) in overrides.keys.items():
        document.put(path, value, f"{option} {value}")
    given = document.data.get("engine_args") or []
    if overrides.engine_args and isinstance(given, list):
        document.put(("engine_args",), [*given, *overrides.engine_args], "--engine-arg")
    for text in overrides.settings:
        path, value = _assignment(text, used, installed)
        document.put(path, value, f"--set {text}")


def _assignment(text: str, used: Collection[str], installed: Collection[str]) -> tuple[tuple[str, ...], Any]:
    """The path and the value that ``--set text`` means. The value is read as YAML, so ``8192`` is a number."""
    name, equals, written = text.partition("=")
    words = tuple(name.strip().split("."))
    if not equals or not all(words):
        raise InputError(
            f"--set {text} is no assignment.", fix="Write --set plugin.option=value or --set serving.key=value."
        )
    try:
        value = yaml.safe_load(written)
    except yaml.YAMLError as error:
        raise InputError(f"--set {text}: the value is not valid YAML.", fix="Quote it.") from error
    if words[0] in StackSpec.model_fields:
        return words, value
    if words[0] in used:
        if len(words) == 1:
            raise InputError(f"--set {text} names no option.", fix=f"Write --set {words[0]}.option=value.")
        return ("plugins", *words), value
    if words[0] in installed:
        raise InputError(f"--set {text}: {words[0]} is not in this stack.", fix=f"Add it with -p {words[0]}.")
    hint = nearest(words[0], [*used, *StackSpec.model_fields])
    raise InputError(f"--set {text}: {words[0]!r} is neither a plugin of this stack nor a section of it.", fix=hint)


def none_of(missing: Sequence[str], installed: Collection[str]) -> tuple[str, str]:
    """What to say about several plugins that are not here: a sentence and its fix."""
    ours = [name for name in missing if name in OWN_PLUGINS]
    get = f"{how_to_install(*ours)}. " if ours else ""
    others = "" if len(ours) == len(missing) else where_to_get("", installed)
    return f"No plugins are called {', '.join(map(repr, missing))}.", f"{get}{others}".strip()
