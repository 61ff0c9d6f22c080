"""Running one of the scripts in :mod:`optistack.engines.inside` in another environment's Python."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optistack.engines.processes import run_logged
from optistack.errors import InputError

_MAIN = Path(__file__).parent / "inside" / "main.py"
# The first import of an engine compiles some 5,000 files: 25 s on two idle cores, 110 s seen on two that did much else.
TIMEOUT_S = 900.0


class GuestError(Exception):
    """The script failed over there.

    ``kind`` is the exception's class there, ``module`` the module that was missing if one was, ``message`` its first
    line.
    """

    def __init__(self, kind: str, message: str, module: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message.strip().splitlines()[0] if message.strip() else kind
        self.module = module


def run_inside(
    python: Path,
    task: str,
    arguments: Mapping[str, object],
    *,
    env: Mapping[str, str] | None = None,
    packages: Sequence[Path] = (),
    on_line: Callable[[str], None] = lambda line: None,
    keep_open: Sequence[int] = (),
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """The answer, parsed from JSON, of ``inside/TASK.py`` run by ``python`` with ``arguments``.

    A task that lies elsewhere, such as an adapter's, is named by the whole path of its file without ``.py``.
    ``packages`` are folders with packages that the script may import beside the environment's own; ``env`` is added to
    this process's variables. Raises :class:`InputError` where ``python`` is no Python, :class:`GuestError` where the
    script fails.
    """
    check_python(python)
    with tempfile.TemporaryDirectory(prefix="optistack-") as scratch:
        result, log = Path(scratch, "result.json"), Path(scratch, "log")
        variables = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", **(env or {})}
        # An engine's imports take twice as long without their compiled files, there and at every start.
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        if packages:
            variables["PYTHONPATH"] = os.pathsep.join([*map(str, packages), os.environ.get("PYTHONPATH", "")]).rstrip(
                ":"
            )
        code = run_logged(
            [str(python), str(_MAIN), task, json.dumps(arguments), str(result)],
            log=log,
            on_line=on_line,
            env=variables,
            cwd=Path(scratch),
            timeout_s=timeout_s,
            keep_open=keep_open,
        )
        if not result.exists():
            raise GuestError("Crash", _why_it_died(code, log, timeout_s))
        outcome = json.loads(result.read_text(encoding="utf-8"))
    if error := outcome.get("error"):
        raise GuestError(error["type"], error["message"], error["module"])
    return outcome["answer"]


def check_python(python: Path) -> None:
    """Raise :class:`InputError` with the likely fix where ``python`` is not a file that can be run."""
    if python.is_dir():
        inner = python / "bin" / "python"
        fix = f"Use {inner}." if inner.exists() else "Name the Python executable in it."
        raise InputError(f"{python} is a folder, not a Python executable.", fix=fix)
    if not python.exists():
        raise InputError(
            f"There is no Python at {python}.",
            fix="Name the engine's Python, or make an environment with `optistack engine install`.",
        )
    if not os.access(python, os.X_OK):
        raise InputError(f"{python} is not executable.", fix="Name the engine's Python executable.")


def _why_it_died(code: int, log: Path, timeout_s: float) -> str:
    if code == -9:
        return f"it was killed, or gave no answer within {timeout_s:.0f} s"
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with code {code} and said nothing"
