"""The guardian: ends everything that belongs to a deployment once its supervisor is gone.

``python -m optistack.apply.guardian FOLDER ID LOCK_FD LEASE_FD`` starts the supervisor and then waits, as its parent
and as nobody's child: whatever the supervisor leaves behind when it is killed becomes the guardian's child, so nothing
can hide from it.
``python -m optistack.apply.guardian FOLDER ID LOCK_FD --watch LINK_FD`` replaces a guardian that was killed itself;
the supervisor starts it, so it has no claim on orphans and goes by mark and record.

The link is a socket pair that nobody writes to: each of the two sees the other's death as its end.
Standard library only, all imported at the start: it must still work when the environment it came from is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from optistack.apply.folder import DeploymentFolder
from optistack.apply.processes import (
    KEEPER_MARK,
    ProcessId,
    adopt_orphans,
    boot_id,
    descendants,
    kill_all,
    living,
    marked,
)
from optistack.apply.shared_memory import remove_left

# What the command that starts a deployment writes into its lease to hand it over.
COMMIT = b"c"


def command(module: str, *arguments: str) -> list[str]:
    """How a module of this package is run: ``-P`` keeps a ``json.py`` in the current folder from being imported."""
    return [sys.executable, "-P", "-m", f"optistack.apply.{module}", *arguments]


def keeper_environment(deployment_id: str) -> dict[str, str]:
    return {**os.environ, KEEPER_MARK: deployment_id}


def start_supervisor(
    folder: DeploymentFolder, deployment_id: str, lock: int, lease: int
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the supervisor in a session of its own; returns it and the guardian's end of the link."""
    ours, theirs = socket.socketpair()
    with theirs:
        supervisor = subprocess.Popen(
            command("supervisor", str(folder.path), *map(str, (lock, lease, theirs.fileno(), os.getpid()))),
            env=keeper_environment(deployment_id),
            stdin=subprocess.DEVNULL,
            pass_fds=(lock, lease, theirs.fileno()),
            start_new_session=True,
        )
    os.close(lease)
    return supervisor, ours


def clean_up(folder: DeploymentFolder, deployment_id: str) -> None:
    """Kill what is left of the deployment and, if the supervisor had no time to, write down that it ended."""
    members = _recorded(_read(folder))

    def find() -> list[ProcessId]:
        left = {*descendants(os.getpid()), *marked(deployment_id), *living(members)}
        return [process for process in left if process.pid != os.getpid()]

    kill_all(find, reap=reap_all)
    removed = remove_left(deployment_id)
    state = _read(folder)
    if state.get("id") != deployment_id or state.get("phase") in ("stopped", "failed"):
        return
    asked_to_stop = state["phase"] == "stopping" and not state.get("reason")
    state |= {"phase": "stopped" if asked_to_stop else "failed", "members": []}
    state["removed"] = [*state.get("removed", []), *removed]
    if not asked_to_stop and not state.get("reason"):
        state["reason"] = "its supervisor was killed or crashed; supervisor.log may say why"
    with contextlib.suppress(OSError):  # all is ended; on a full disk the free lock says so
        folder.write("state.json", json.dumps(state, indent=1))


def _recorded(state: dict[str, Any]) -> list[ProcessId]:
    if state.get("boot") != boot_id():
        return []
    return [ProcessId(member["pid"], member["start_ticks"]) for member in state.get("members", [])]


def _read(folder: DeploymentFolder) -> dict[str, Any]:
    try:
        state = json.loads(folder.state_file.read_bytes())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def reap_all() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(arguments: list[str]) -> None:
    # Asked to end by anybody, it stays: the supervisor decides when the deployment ends.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    folder, deployment_id, lock = DeploymentFolder(Path(arguments[0])), arguments[1], int(arguments[2])
    if arguments[3] == "--watch":
        link = socket.socket(fileno=int(arguments[4]))
    else:
        if os.fork():
            os._exit(0)  # nobody's child, so nobody has to reap it
        adopt_orphans()
        _supervisor, link = start_supervisor(folder, deployment_id, lock, int(arguments[3]))
    os.chdir("/")
    with link:
        link.recv(1)
    clean_up(folder, deployment_id)


if __name__ == "__main__":
    main(sys.argv[1:])
