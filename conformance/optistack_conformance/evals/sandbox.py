"""Run a model's code in a subprocess with limits.

It keeps honest mistakes from hurting: endless loops, memory, files, and, where the kernel allows it to users, the
network. It is no wall against an attacker; run the suite in a container where that matters.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

WALL_S = 10.0
GUARD = """
import ctypes, resource, sys
for limit, value in ((resource.RLIMIT_CPU, 2), (resource.RLIMIT_AS, 512 * 2**20), (resource.RLIMIT_FSIZE, 2**20),
                     (resource.RLIMIT_NOFILE, 32), (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(limit, (value, value))
# A user and a network namespace of its own: no interface but a loopback that is down. Refused in some containers.
ctypes.CDLL(None).unshare(0x10000000 | 0x40000000)
source = sys.stdin.read()
exec(compile(source, "answer.py", "exec"), {"__name__": "__main__"})
"""


def passes(program: str) -> bool:
    """Whether ``program`` runs to its end without an exception, in an empty folder and an empty environment."""
    with tempfile.TemporaryDirectory(prefix="optistack-eval-") as folder:
        guard = Path(folder, "guard.py")
        guard.write_text(GUARD)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(guard)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": "/nonexistent"},
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(program.encode(errors="replace"), timeout=WALL_S)
        finally:
            # What it started lives in its session; take that along.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return process.returncode == 0
