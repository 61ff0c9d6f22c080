"""What a user can be told. Each error is one sentence and, where there is one, the fix; its class is the exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OptistackError(Exception):
    """Base of every error that is shown to the user without a traceback.

    ``message`` is one sentence that names what is wrong and where; ``fix`` is what to do about it.
    """

    exit_code = 2

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message} {self.fix}".strip()


class CheckFailedError(OptistackError):
    """A check on a running engine failed (exit code 1)."""

    exit_code = 1


class InputError(OptistackError):
    """What the user gave is wrong: file, option, checkpoint, node (exit code 2)."""


class NoEngineError(CheckFailedError):
    """What answers is no engine, or keeps its answers for those with a key: the URL is wrong input (exit code 2).

    In the probe of an engine that is known to be one, it is a failed check like others.
    """

    exit_code = InputError.exit_code


class PlanRefusedError(OptistackError):
    """The stack cannot work on this model, node or engine (exit code 2).

    A plugin that refuses because this engine or device lacks what it needs gives a ``rule``, a stable id:
    ``--allow-degraded`` may then leave that plugin out. ``plugin`` is filled in by the host.
    """

    def __init__(self, message: str, *, fix: str = "", rule: str = "", plugin: str = "") -> None:
        super().__init__(message, fix=fix)
        self.rule = rule
        self.plugin = plugin


class EngineStartError(OptistackError):
    """The engine did not come up (exit code 3)."""

    exit_code = 3


READ_PERMISSION = "Give this user the right to read it (chmod), or run as the user who has it."
"""The fix for a file that its permissions keep from us."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """A sentence that suggests the nearest of ``choices``, or lists them all, or nothing if there are none."""
    known = sorted(set(choices))
    if not known:
        return ""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return "Known: " + ", ".join(known) + "."


OWN_PLUGINS = ("dflash", "hicache", "kv-fp8", "quant-nvfp4", "routing")
"""Plugins of this project, each a distribution called after it."""


def how_to_install(*plugins: str) -> str:
    """The command for these of :data:`OWN_PLUGINS`. They are on no index yet, and come with a clone."""
    folders = [f"./plugins/{name.replace('-', '_')}" for name in plugins]
    return f"In a clone of optistack, run: pip install {' '.join(folders)}"


def where_to_get(plugin: str, installed: Iterable[str]) -> str:
    """What to do about a ``plugin`` that is not installed: the nearest name, or where it comes from if known."""
    here = sorted(set(installed))
    if plugin in OWN_PLUGINS:
        return how_to_install(plugin)
    hint = nearest(plugin, [*here, *OWN_PLUGINS])
    if hint.startswith("Did"):
        return hint
    return f"Installed: {', '.join(here) or 'none'}. Another one comes with the distribution that brings it."
