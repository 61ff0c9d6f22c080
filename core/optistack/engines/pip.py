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
_CONFLICT = re.compile(r"^Cannot install (.+) because these package versions have conflicting dependencies")
_HOST = re.compile(r"host='([^']+)'")
_NOT_FOUND = "No matching distribution found for "


class PipError(Exception):
    """pip failed: ``reason`` is its own account of why, ``missing`` the requirements that its sources do not have."""

    def __init__(self, reason: str, missing: tuple[str, ...] = ()) -> None:
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
    account = _Account()

    def read(line: str) -> None:
        account.read(line)
        if text := _in_a_few_words(line):
            progress.detail(text)

    argv = [str(python), "-u", "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]
    with log.open("a", encoding="utf-8") as kept:
        kept.write(f"$ {' '.join(argv)}\n")
    code = run_logged(argv, log=log, on_line=read, env=clean_environment(), keep_open=keep_open)
    if code:
        raise account.error(code)


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


class _Account:
    """What pip says about a failure, gathered from its lines."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.conflict: list[str] = []
        self.unreachable = ""
        self._in_conflict = False

    def read(self, line: str) -> None:
        if line.startswith("ERROR: "):
            self.errors.append(line.removeprefix("ERROR: ").rstrip("."))
        elif line.startswith("WARNING: Retrying "):
            host = _HOST.search(line)
            self.unreachable = f"{host[1] if host else 'one of its sources'} could not be reached"
        elif line == "The conflict is caused by:":
            self._in_conflict = True
        elif self._in_conflict and line.startswith(" "):
            self.conflict.append(line.strip())
        else:
            self._in_conflict = False

    def error(self, code: int) -> PipError:
        reason, missing = self._reason(code)
        return PipError("; ".join(filter(None, (reason, self.unreachable))), missing)

    def _reason(self, code: int) -> tuple[str, tuple[str, ...]]:
        for line in self.errors:
            if line.startswith(_NOT_FOUND):
                return line, (line.removeprefix(_NOT_FOUND).split()[0],)
            # Where a constraints file names the package too, pip calls a missing version a conflict.
            if found := _CONFLICT.match(line):
                return f"{line} ({'; '.join(self.conflict)})", tuple(re.split(", | and ", found[1]))
        return (self.errors[-1] if self.errors else f"it ended with exit code {code}"), ()
