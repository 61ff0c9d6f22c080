"""What is running, as the supervisor writes it into the deployment's folder.

The supervisor is the only writer while it lives. Before it there is the command that starts it, after it the guardian
or ``stop``; the folder's lock passes from one to the next.
"""

from __future__ import annotations

import shutil
from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError

from optistack.apply.folder import DeploymentFolder
from optistack.apply.processes import ProcessId, boot_id

STOP_TIMEOUT_S = 30.0
"""Between SIGTERM and SIGKILL, where nobody says."""

LATE = "was not ready in time"
"""In the ``reason`` of a failure, behind the name of the process that missed its ``ready_timeout_s``."""


FULL_BYTES = 65_536
"""A disk with less room than this does not take a state file for sure."""


class Phase(StrEnum):
    """``starting`` > ``ready`` > ``stopping`` > ``stopped`` or ``failed``. ``ready``: every process answered 200."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self in (Phase.STOPPED, Phase.FAILED)


class ProcessState(BaseModel):
    """One process of the deployment. ``exit_code`` is negative for a signal and ``None`` while it runs.

    ``reason``  why it ended, where the deployment goes on without it
    """

    model_config = ConfigDict(frozen=True)

    name: str
    process: ProcessId | None = None
    ready: bool = False
    exit_code: int | None = None
    reason: str = ""


class State(BaseModel):
    """``state.json``.

    ``id``  marks every process of this run in its environment
    ``reason``  why it failed, or who stopped it
    ``stop_timeout_s``  time that its processes are given to end
    ``boot``  the boot that the process ids belong to
    ``supervisor``, ``guardian``  the two that watch it
    ``processes``  what the spec names
    ``members``  every process seen below them, their children and those that went off on their own included
    ``removed``  files that killed processes had left in /dev/shm, each with its size; they are gone
    """

    model_config = ConfigDict(frozen=True)

    id: str
    phase: Phase
    reason: str = ""
    stop_timeout_s: float = STOP_TIMEOUT_S
    boot: str
    started_at: datetime
    ready_at: datetime | None = None
    supervisor: ProcessId | None = None
    guardian: ProcessId | None = None
    processes: tuple[ProcessState, ...] = ()
    members: tuple[ProcessId, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def this_boot(self) -> bool:
        return self.boot == boot_id()


def read_state(folder: DeploymentFolder) -> State | None:
    """The state as written; ``None`` when there is none, or none that can be read."""
    try:
        return State.model_validate_json(folder.state_file.read_bytes())
    except (OSError, ValidationError):
        return None


def write_state(folder: DeploymentFolder, state: State) -> None:
    folder.write("state.json", state.model_dump_json(indent=1))


def actual_state(folder: DeploymentFolder) -> State | None:
    """The state as it is: a phase that nobody stands behind any more (the lock is free) has failed."""
    state = read_state(folder)
    if state is None or state.phase.is_final or folder.locked():
        return state
    again = read_state(folder)  # it may have ended between the two looks
    if again is None or again.phase.is_final:
        return again
    return again.model_copy(update={"phase": Phase.FAILED, "reason": _why_unwritten(folder, again)})


def _why_unwritten(folder: DeploymentFolder, state: State) -> str:
    """Why nobody wrote that the deployment of ``state`` has ended."""
    if not state.this_boot:
        return "the machine was restarted"
    if shutil.disk_usage(folder.path).free < FULL_BYTES:
        return f"the disk of {folder.path} is full, and how it ended could not be written"
    return "its supervisor and its guardian were killed"
