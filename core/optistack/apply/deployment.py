"""Deployments that exist: find them, look at them, stop them. ``start`` makes them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optistack import paths
from optistack.apply.folder import DeploymentFolder
from optistack.apply.launch import NAME_PATTERN, DeploymentSpec
from optistack.apply.logs import log_files
from optistack.apply.processes import KEEPER_MARK, ProcessId, kill_all, living, marked, send, started_with
from optistack.apply.shared_memory import remove_left
from optistack.apply.state import STOP_TIMEOUT_S, Phase, State, actual_state, read_state, write_state
from optistack.errors import CheckFailedError, InputError, nearest

POLL_S = 0.05
# On top of stop_timeout_s, before the keepers are killed: time for SIGKILL to work and for GPU memory to be freed.
KEEPER_GRACE_S = 15.0
KILL_GRACE_S = 10.0


@dataclass(frozen=True)
class Deployment:
    """A deployment as its folder tells it; every look is a fresh one."""

    folder: DeploymentFolder

    @property
    def name(self) -> str:
        return self.folder.path.name

    @property
    def spec(self) -> DeploymentSpec:
        """What was started. Raises InputError when that cannot be read."""
        try:
            return DeploymentSpec.model_validate_json(self.folder.spec_file.read_bytes())
        except (OSError, ValidationError):
            raise self.damaged(self.folder.spec_file) from None

    @property
    def state(self) -> State:
        """Raises InputError when the folder holds no state that can be read."""
        state = actual_state(self.folder)
        if state is None:
            raise self.damaged(self.folder.state_file)
        return state

    def damaged(self, file: Path) -> InputError:
        """What is to be told where ``file`` cannot be read, and done."""
        fix = f"Remove the folder {self.folder.path}."
        if self.locked() and read_state(self.folder) is not None:
            fix = f"`optistack down {self.name}` stops it; then: {fix}"
        elif self.locked():
            supervisors = started_with("optistack.apply.supervisor", str(self.folder.path))
            stops = " ".join(str(supervisor.pid) for supervisor in supervisors)
            fix = (
                f"`kill {stops}` stops it; then: {fix}"
                if stops
                else f"Something of it still runs. When it ended: {fix}"
            )
        return InputError(f"{file} is missing or damaged.", fix=fix)

    def locked(self) -> bool:
        """Whether somebody watches it, as far as this user may know."""
        try:
            return self.folder.locked()
        except OSError:
            return False

    def alive(self) -> bool:
        """Whether it is starting or ready, with somebody watching it."""
        return self.state.phase in (Phase.STARTING, Phase.READY)

    def log_files(self, process_name: str) -> list[Path]:
        """The parts of the log of one process, oldest first."""
        return log_files(self.folder, process_name)


def folder_of(name: str) -> DeploymentFolder:
    return DeploymentFolder(paths.deployments_dir().absolute() / name)


def list_deployments() -> list[Deployment]:
    """Every deployment whose folder exists, running or not, by name; but not those of ``list_damaged``."""
    return [one for one in _folders() if read_state(one.folder) is not None]


def list_damaged() -> list[Deployment]:
    """Those whose state is there and cannot be read: all that they can tell is an error."""
    return [one for one in _folders() if _has_state(one.folder) and read_state(one.folder) is None]


def _folders() -> list[Deployment]:
    root = paths.deployments_dir()
    return [Deployment(DeploymentFolder(path)) for path in sorted(root.iterdir())] if root.is_dir() else []


def _has_state(folder: DeploymentFolder) -> bool:
    try:
        folder.state_file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # somebody else's
        pass
    return True


def find(name: str) -> Deployment:
    """The deployment called ``name``, running or not. Raises InputError, with the nearest name, when there is none."""
    if re.fullmatch(NAME_PATTERN, name) and _has_state(folder_of(name)):
        return Deployment(folder_of(name))
    raise InputError(
        f"There is no deployment {name!r}.", fix=nearest(name, (deployment.name for deployment in list_deployments()))
    )


def stop(deployment: Deployment) -> bool:
    """End everything that belongs to ``deployment``; returns whether anything had to be ended.

    May be called again and again, at any phase, and after its supervisor and guardian were killed: then whatever is
    marked or recorded as belonging to it is killed from here. Raises CheckFailedError when something will not die.
    """
    folder = deployment.folder
    was_running = folder.locked()
    return end(folder, ask_to_stop=True) or was_running


def end(folder: DeploymentFolder, *, ask_to_stop: bool = False) -> bool:
    """Wait for the keepers to end everything, kill them if they do not, and then kill what they left behind, if any.

    With ``ask_to_stop`` they are asked to, and the deployment is written down as stopped, or as failed where it had
    failed before. Returns whether they left anything. Raises CheckFailedError when something will not die.
    """
    before = actual_state(folder)
    released = await_release(folder, ask_to_stop=ask_to_stop)
    if not released:
        kill_keepers(folder)
    lock = folder.acquire(patience_s=KILL_GRACE_S)
    if lock is None:
        raise CheckFailedError(f"{folder.path.name} is held by another command.", fix="Try again when that is done.")
    try:
        left = sweep(folder)
        state = read_state(folder)
        if ask_to_stop and state is not None and state.phase is not Phase.STOPPED:
            # Of keepers that were killed here the guardian wrote that it failed.
            told = state if released and state.phase is Phase.FAILED else before
            failed = told is not None and told.phase is Phase.FAILED
            ended: dict[str, Any] = {"phase": Phase.FAILED if failed else Phase.STOPPED, "members": ()}
            ended |= {"reason": told.reason} if told is not None and failed else {}
            with contextlib.suppress(OSError):  # all is ended; on a full disk the free lock says so
                write_state(folder, state.model_copy(update=ended))
        return left
    finally:
        os.close(lock)


def await_release(folder: DeploymentFolder, *, ask_to_stop: bool = False) -> bool:
    """Wait until nobody watches the deployment any more: nothing of it is left then. False when that takes too long.

    With ``ask_to_stop`` the supervisor is sent SIGTERM, once, as soon as it is there.
    """
    started = time.monotonic()
    while folder.locked():
        state = read_state(folder)
        # One that is stopping already would take another SIGTERM for impatience.
        if ask_to_stop and state and state.supervisor and state.this_boot and state.phase is not Phase.STOPPING:
            ask_to_stop = not send(state.supervisor, signal.SIGTERM)
        stop_timeout_s = state.stop_timeout_s if state else STOP_TIMEOUT_S
        if time.monotonic() - started > stop_timeout_s + KEEPER_GRACE_S:
            return False
        time.sleep(POLL_S)
    return True


def kill_keepers(folder: DeploymentFolder) -> None:
    """Kill a supervisor that does not react. Its guardian, which can find what we cannot, is killed only after that."""
    state = read_state(folder)
    if state is None:
        return
    keepers = marked(state.id, name=KEEPER_MARK)
    for keeper in sorted(keepers, key=lambda keeper: keeper != state.supervisor):
        send(keeper, signal.SIGKILL)
        deadline = time.monotonic() + KILL_GRACE_S
        while folder.locked() and time.monotonic() < deadline:
            time.sleep(POLL_S)


def sweep(folder: DeploymentFolder) -> bool:
    """Kill what a run whose keepers are gone has left behind, and remove what it has left in /dev/shm.

    Call it with the lock held. Returns whether anything had to be killed.
    """
    state = read_state(folder)
    if state is None:
        return False
    recorded = state.members if state.this_boot else ()
    found = False

    def find_left() -> set[ProcessId]:
        nonlocal found
        left = {*marked(state.id), *living(recorded)}
        found = found or bool(left)
        return left

    survivors = kill_all(find_left, give_up_s=KILL_GRACE_S)
    if survivors:
        pids = ", ".join(str(process.pid) for process in survivors)
        raise CheckFailedError(
            f"Processes of {folder.path.name} do not end: {pids}.", fix="They may hang in a driver; see `ps`."
        )
    if removed := remove_left(state.id):
        with contextlib.suppress(OSError):  # it is only told then
            write_state(folder, state.model_copy(update={"removed": state.removed + removed}))
    return found
