"""Find and end the processes of a deployment, by what the kernel says about them.

A process belongs to a deployment when it descends from its supervisor, when it carries the deployment's mark in its
environment, or when it was recorded as one of them and still has the start time that was recorded. The three cover
each other: a daemon that left its process group and session still descends from the supervisor, which adopts orphans
(PR_SET_CHILD_SUBREAPER); after the death of supervisor and guardian the mark still finds it; and the record finds one
that wiped its environment.

Linux only, standard library only: the guardian uses this.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

MARK = "OPTISTACK_DEPLOYMENT"
# Carried by supervisor and guardian instead of MARK, so that a sweep for MARK cannot hit them.
KEEPER_MARK = "OPTISTACK_KEEPER"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

# Time a multiprocessing resource tracker has to remove its dead parents' shared memory before it is killed too.
TRACKER_GRACE_S = 2.0


@dataclass(frozen=True)
class ProcessId:
    """A process, not a number: ``start_ticks`` (clock ticks since boot) tells it from a later one with its pid."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class _Entry:
    id: ProcessId
    parent: int
    gone: bool


def boot_id() -> str:
    """Changes with every boot: pids and start times of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def adopt_orphans() -> None:
    """From now on, orphaned descendants of this process become its children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL when the parent dies. For use between fork and exec, with the parent's pid."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)  # it died before the request was made


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def identify(pid: int) -> ProcessId | None:
    """The living process with this pid; ``None`` when there is none or it only waits to be reaped."""
    entry = _read(pid)
    return None if entry is None or entry.gone else entry.id


def _read(pid: int) -> _Entry | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the name in parentheses, which may hold anything; proc(5) numbers the fields from 1.
    fields = stat.rpartition(b")")[2].split()
    return _Entry(ProcessId(pid, int(fields[19])), int(fields[1]), fields[0] in (b"Z", b"X"))


def _table() -> dict[int, _Entry]:
    entries = (_read(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 (a hot path)
    return {entry.id.pid: entry for entry in entries if entry is not None}


def descendants(root: int) -> list[ProcessId]:
    """The living descendants of ``root``, itself not counted."""
    table = _table()
    children: dict[int, list[_Entry]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry)
    found, todo = [], [root]
    while todo:
        for child in children.get(todo.pop(), []):
            todo.append(child.id.pid)
            if not child.gone:
                found.append(child.id)
    return found


def marked(value: str, *, name: str = MARK) -> list[ProcessId]:
    """The living processes started with ``name=value`` in their environment, as far as this user may look."""
    wanted = f"\0{name}={value}\0".encode()
    return [entry.id for entry in _table().values() if not entry.gone and wanted in b"\0" + _file(entry.id, "environ")]


def started_with(*words: str) -> list[ProcessId]:
    """The living processes that have ``words``, in this order, in their command line."""
    wanted = "".join(f"\0{word}" for word in words).encode() + b"\0"
    return [entry.id for entry in _table().values() if not entry.gone and wanted in _file(entry.id, "cmdline")]


def living(recorded: Iterable[ProcessId]) -> list[ProcessId]:
    """Those of ``recorded`` (in this boot) that still run."""
    return [process for process in recorded if identify(process.pid) == process]


def _file(process: ProcessId, name: str) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/{name}").read_bytes()
    except OSError:
        return b""


def send(process: ProcessId, signum: int) -> bool:
    """Signal this very process; false when it is gone. A pidfd makes it exact where the kernel has them (5.3)."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:
        handle = None
    try:
        if identify(process.pid) != process:
            return False
        if handle is None:
            os.kill(process.pid, signum)
        else:
            signal.pidfd_send_signal(handle, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def kill_all(
    find: Callable[[], Iterable[ProcessId]],
    *,
    reap: Callable[[], None] = lambda: None,
    give_up_s: float = float("inf"),
) -> list[ProcessId]:
    """SIGKILL what ``find`` finds, again and again, until it has found nothing twice. Returns what would not die.

    Twice, because a scan of /proc is not a snapshot. A process in uninterruptible sleep (a hung driver or mount)
    dies only when it wakes, so without ``give_up_s`` this may wait for long. Python's resource trackers go last: they
    remove the shared memory of the others, which would stay until the next boot.
    """
    started = time.monotonic()
    clean = 0
    while True:
        reap()
        found = list(find())
        clean = 0 if found else clean + 1
        waited = time.monotonic() - started
        if clean == 2 or waited > give_up_s:
            return found
        for process in found:
            if waited > TRACKER_GRACE_S or b"resource_tracker" not in _file(process, "cmdline"):
                send(process, signal.SIGKILL)
        time.sleep(0.02 if waited < 5 else 0.5)
