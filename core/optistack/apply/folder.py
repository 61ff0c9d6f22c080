"""A deployment's folder: its layout, its lock, and writes that are whole or not there.

::

    NAME/lock            held by whoever starts, watches or cleans up the deployment
    NAME/spec.json       what was started (DeploymentSpec)
    NAME/state.json      what is running (State)
    NAME/receipt.json    what was proved; written by others, removed by the next start
    NAME/supervisor.log  what the supervisor and the guardian have to say
    NAME/logs/           one log for each process
    NAME/logs.previous/  the logs of the run before

Standard library only: the guardian uses this.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from optistack.files import write_whole

RESERVED = ("lock", "spec.json", "state.json", "receipt.json", "supervisor.log", "logs", "logs.previous")


@dataclass(frozen=True)
class DeploymentFolder:
    """Paths and the lock of one deployment. The folder stays after ``down``; its next start empties it."""

    path: Path

    @property
    def spec_file(self) -> Path:
        return self.path / "spec.json"

    @property
    def state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def receipt_file(self) -> Path:
        return self.path / "receipt.json"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def logs_dir(self) -> Path:
        return self.path / "logs"

    def log_file(self, process_name: str) -> Path:
        return self.logs_dir / f"{process_name}.log"

    def acquire(self, *, patience_s: float = 0.5) -> int | None:
        """Take the lock and return its descriptor, or ``None`` when somebody else holds it.

        The lock belongs to the open file, so a child that inherits the descriptor holds it too, and the kernel lets go
        when the last of them is gone, however it went. That makes it the one fact that cannot be stale: it is held
        exactly as long as a starter, supervisor or guardian lives. ``locked`` holds it for a moment, hence the
        patience.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    return None
                time.sleep(0.01)

    def locked(self) -> bool:
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def empty(self) -> None:
        """Forget the run before, except for its logs. Call it with the lock held."""
        previous = self.path / "logs.previous"
        if self.logs_dir.is_dir():
            shutil.rmtree(previous, ignore_errors=True)
            self.logs_dir.rename(previous)
        for entry in self.path.iterdir():
            if entry.name in ("lock", "logs.previous"):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        self.logs_dir.mkdir(mode=0o700)

    def write(self, relative: str, text: str) -> None:
        """Write a file of the folder: the old text or the new, never a part."""
        path = self.path / relative
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, text)
