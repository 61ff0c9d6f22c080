"""pip, run in another environment: its output in a log, its progress in a few words, its own reason when it fails."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from optistack.engines.processes import run_logged
from optistack.engines.progress import Progress

_COLLECTING = re.compile(r"^(?:Collecting|Processing) (?:\S+/)?(\S+)")
_DOWNLOADING = re.compile(r"^\s*Downloading (?:\S+/)?(\S+) \((.+)\)$")
_NOT_FOUND = "No matching distribution found for "


class PipError(Exception):
    """pip failed: ``reason`` is its own line about why, ``missing`` the requirement that none of its sources has."""

    def __init__(self, reason: str, missing: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.missing = missing


def run_pip(
    python: Path,
    arguments: Sequence[str],
    *,
    log: Path,
    progress: Progress,
    keep_open: Sequence[int] = (),
) -> None:
    """Run ``python -m pip`` with the user's pip configuration (indexes, proxies, certificates); :class:`PipError`."""
    errors: list[str] = []

    def read(line: str) -> None:
        if line.startswith("ERROR: "):
            errors.append(line.removeprefix("ERROR: "))
        elif text := _in_a_few_words(line):
            progress.detail(text)

    argv = [str(python), "-u", "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]
    with log.open("a", encoding="utf-8") as kept:
        kept.write(f"$ {' '.join(argv)}\n")
    code = run_logged(argv, log=log, on_line=read, env=clean_environment(), keep_open=keep_open)
    if code:
        raise _error(errors, code)


def clean_environment() -> dict[str, str]:
    """This process's variables without those that would lead another environment to packages that are not its own.

    Nor is Python kept from writing compiled files: pip and engines start in half the time with them.
    """
    dropped = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"}
    return {name: value for name, value in os.environ.items() if name not in dropped} | {"PIP_USER": "0"}


def _in_a_few_words(line: str) -> str:
    if found := _COLLECTING.match(line):
        return f"collecting {found[1]}"
    if found := _DOWNLOADING.match(line):
        return f"downloading {found[1]} ({found[2]})"
    if line.startswith("Installing collected packages:"):
        count = line.count(",") + 1
        return f"unpacking {count} package{'s' * (count > 1)}"
    return ""


def _error(errors: Sequence[str], code: int) -> PipError:
    for line in errors:
        if line.startswith(_NOT_FOUND):
            return PipError(line, missing=line.removeprefix(_NOT_FOUND).split()[0])
    return PipError(errors[-1] if errors else f"pip ended with exit code {code}")
