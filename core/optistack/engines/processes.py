"""Other programs run to their end: their output kept in a log, nothing of them left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# How long a program may take to put its things in order once it was asked to stop.
GRACE_S = 5.0


def run_logged(
    argv: Sequence[str],
    *,
    log: Path,
    on_line: Callable[[str], None] = lambda line: None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    keep_open: Sequence[int] = (),
) -> int:
    """Run ``argv``, append its output to ``log`` and hand each line to ``on_line``; returns its exit code.

    It runs as a process group of its own, which is stopped when this call is interrupted or ``timeout_s`` passes (the
    exit code is then negative). Should this process be killed outright, the pipe to it breaks at the program's next
    line.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("a", encoding="utf-8") as kept,
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=env,
            cwd=cwd,
            pass_fds=tuple(keep_open),
            start_new_session=True,
        ) as process,
    ):
        timer = threading.Timer(timeout_s, _kill_if_running, (process,)) if timeout_s else None
        try:
            if timer:
                timer.start()
            assert process.stdout is not None
            for line in process.stdout:
                kept.write(line)
                kept.flush()
                on_line(line.rstrip("\n"))
            return process.wait()
        except BaseException:
            _stop_group(process)
            raise
        finally:
            if timer:
                timer.cancel()


def _stop_group(process: subprocess.Popen[str]) -> None:
    _signal_group(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _kill_if_running(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
