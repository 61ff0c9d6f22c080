"""Command lines of a list of configurations, each of which may be told to end and then still writes what it has."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

ROOT = Path(__file__).parents[1]
CHECK_TIMEOUT_S = 400
END_S = 30
"""What a command that is told to end may take to write what it has measured."""


def optistack(words: list[str], env: dict[str, str], log: Path) -> tuple[int, Any]:
    """Exit code and JSON document of a command; its stderr goes to ``log``."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as errors:
        try:
            code = until_ended([sys.executable, "-m", "optistack.cli", *words], out, errors, env)
        finally:
            said, complaint = (file.seek(0) or file.read() for file in (out, errors))
            with log.open("a") as file:
                file.write(f"$ optistack {' '.join(words)}\n{complaint}\n")
    try:
        return code, json.loads(said)
    except ValueError:
        return code, {"error": complaint[-500:]}


def until_ended(
    words: Sequence[str],
    out: IO[str],
    errors: IO[str],
    env: dict[str, str],
    *,
    cwd: Path | None = None,
    timeout_s: float | None = None,
) -> int:
    """The exit code of a command. Whoever interrupts this, or its time, interrupts that too, which may take END_S to
    write what it has. Raises TimeoutExpired."""
    child = subprocess.Popen(words, stdout=out, stderr=errors, env={**os.environ, **env}, cwd=cwd)
    try:
        return child.wait(timeout_s)
    except BaseException:
        child.terminate()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def check(line: str, places: dict[str, str], file: Path, env: dict[str, str], log: Path) -> int | str:
    """The exit code of a command line; one that takes too long or cannot start is no reason to lose the others."""
    started = time.monotonic()
    try:
        with file.open("w") as out, log.open("a") as errors:
            filled = line.format_map({name: shlex.quote(place) for name, place in places.items()})
            words = shlex.split(os.path.expandvars(filled))
            code: int | str = until_ended(words, out, errors, env, cwd=ROOT, timeout_s=CHECK_TIMEOUT_S)
    except (OSError, KeyError, ValueError, subprocess.TimeoutExpired) as problem:
        code = type(problem).__name__
    with log.open("a") as errors:
        errors.write(f"$ {line}: {code} after {time.monotonic() - started:.1f} s\n")
    return code
