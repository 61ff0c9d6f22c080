"""Start a deployment, and stay with it until it is handed over to its supervisor.

The command that starts it holds a lease: a pipe that the supervisor reads. Until ``commit`` the deployment lives no
longer than that command, whatever ends it, ``kill -9`` included.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from optistack.apply.deployment import POLL_S, Deployment, await_release, end, folder_of, list_deployments, sweep
from optistack.apply.folder import DeploymentFolder
from optistack.apply.guardian import COMMIT, command, keeper_environment
from optistack.apply.launch import DeploymentSpec
from optistack.apply.logs import last_line
from optistack.apply.ports import require_free
from optistack.apply.processes import boot_id, send
from optistack.apply.state import LATE, Phase, ProcessState, State, read_state, write_state
from optistack.apply.termination import termination_raises
from optistack.errors import EngineStartError, InputError

PROGRESS_S = 0.5


@dataclass(frozen=True)
class Progress:
    """How a start is going: how many processes are ready, and the newest log line of the first that is not."""

    elapsed_s: float
    ready: int
    processes: int
    log_line: str


@dataclass
class Attached:
    """A deployment that ends with the block it was started for, unless it is committed."""

    deployment: Deployment
    lease: int
    launched: bool = False
    committed: bool = False

    def commit(self) -> None:
        """Leave it to its supervisor: it outlives this command now. Raises EngineStartError when it has just ended."""
        self.check()
        try:
            os.write(self.lease, COMMIT)
        except BrokenPipeError:
            raise end_error(self.deployment) from None
        self.committed = True

    def check(self, *, patience_s: float = 0.0) -> None:
        """Raise EngineStartError, with the reason of the engine, when it no longer runs.

        ``patience_s``  how long to look: a process may still be on its way down when it has stopped answering
        """
        deadline = time.monotonic() + patience_s
        while self.deployment.state.phase is Phase.READY:
            if time.monotonic() >= deadline:
                return
            time.sleep(POLL_S)
        raise end_error(self.deployment)

    def wait(self) -> State:
        """Stay until it has ended by itself or was stopped from elsewhere; returns its last state."""
        while self.deployment.folder.locked():
            time.sleep(4 * POLL_S)
        return self.deployment.state


def start(spec: DeploymentSpec, *, on_progress: Callable[[Progress], None] | None = None) -> Deployment:
    """Start everything in ``spec``, wait until it is ready, and leave it running under its supervisor.

    Raises InputError (the name is running, a port is taken) before anything is started, and EngineStartError with the
    engine's own reason. When this is left in any other way (Ctrl-C, SIGTERM, SIGHUP) nothing is left running either.
    """
    with attached(spec, on_progress=on_progress) as live:
        live.commit()
        return live.deployment


@contextmanager
def attached(spec: DeploymentSpec, *, on_progress: Callable[[Progress], None] | None = None) -> Iterator[Attached]:
    """As ``start``, but the deployment ends with the block unless ``commit`` is called in it.

    For work between ready and hand-over (checks that decide whether it may stay), and for running in the foreground::

        with attached(spec) as live:
            live.wait()
    """
    with termination_raises():
        ours, theirs = os.pipe()
        live = Attached(Deployment(folder_of(spec.name)), theirs)
        try:
            _launch(live, spec, ours)
            _wait_until_ready(live.deployment, on_progress)
            yield live
        finally:
            os.close(theirs)
            if live.launched and not live.committed:
                _abandon(live.deployment)


def require_room(name: str, ports: Iterable[tuple[str, int]]) -> None:
    """Raise InputError when deployment ``name`` is running, when there is no place for its folder, or when one of
    ``ports``, pairs of host and port, is in use. Leaves nothing but the folder of all deployments."""
    folder = folder_of(name)
    try:
        state = read_state(folder)
        if folder.locked() and state is not None:
            raise _already_running(name, state)
        folder.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = folder.path if folder.path.exists() else folder.path.parent
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
    except OSError as error:
        raise _cannot_work(folder, error) from None
    if state is not None and not state.phase.is_final:
        return  # its keepers were killed: the start clears away what holds its ports
    for host, port in ports:
        _require_port(host, port)


def _already_running(name: str, state: State | None) -> InputError:
    if state is not None and state.phase is Phase.STOPPING:
        return InputError(f"Deployment {name!r} is being stopped.", fix=f"`optistack down {name}` waits for its end.")
    return InputError(f"Deployment {name!r} is already running.", fix=f"`optistack down {name}` stops it.")


def _cannot_work(folder: DeploymentFolder, error: OSError) -> InputError:
    why = error.strerror or str(error)
    return InputError(f"Cannot work in {folder.path}: {why}.", fix="XDG_STATE_HOME puts it elsewhere.")


def _launch(live: Attached, spec: DeploymentSpec, lease: int) -> None:
    """Check what can be checked, fill the folder, and start the guardian, which starts the supervisor."""
    folder = live.deployment.folder
    lock = None
    try:
        lock = folder.acquire()
        if lock is None:
            raise _already_running(spec.name, read_state(folder))
        sweep(folder)
        for process in spec.processes:
            _require_port(process.host, process.port)
            for port in process.ports.values():
                _require_port("127.0.0.1", port)
        state = _fill(folder, spec)
        live.launched = True
        with folder.supervisor_log.open("ab") as log:
            guardian = subprocess.run(
                command("guardian", str(folder.path), state.id, str(lock), str(lease)),
                env=keeper_environment(state.id),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock, lease),
                start_new_session=True,
            )
        if guardian.returncode:
            raise EngineStartError("The supervisor could not be started.", fix=f"Log: {folder.supervisor_log}")
    except OSError as error:
        raise _cannot_work(folder, error) from None
    finally:
        os.close(lease)
        if lock is not None:
            os.close(lock)


def _fill(folder: DeploymentFolder, spec: DeploymentSpec) -> State:
    folder.empty()
    for process in spec.processes:
        for relative in process.folders:
            (folder.path / relative).mkdir(mode=0o700, parents=True, exist_ok=True)
        for relative, text in process.files.items():
            folder.write(relative, text)
    folder.write("spec.json", spec.model_dump_json(indent=1))
    state = State(
        id=uuid.uuid4().hex,
        phase=Phase.STARTING,
        stop_timeout_s=spec.stop_timeout_s,
        boot=boot_id(),
        started_at=datetime.now(UTC),
        processes=tuple(ProcessState(name=process.name) for process in spec.processes),
    )
    write_state(folder, state)
    return state


def _require_port(host: str, port: int) -> None:
    try:
        require_free(host, port)
    except InputError:
        for other in list_deployments():
            if other.alive() and port in (theirs.port for theirs in other.spec.processes):
                raise InputError(
                    f"Port {port} is in use by deployment {other.name!r}.",
                    fix=f"`optistack down {other.name}` stops it; or choose another port.",
                ) from None
        raise


def _wait_until_ready(deployment: Deployment, on_progress: Callable[[Progress], None] | None) -> None:
    started = time.monotonic()
    next_told_s = 0.0
    while (state := deployment.state).phase is not Phase.READY:
        if state.phase.is_final:
            raise end_error(deployment)
        elapsed_s = time.monotonic() - started
        if on_progress is not None and elapsed_s >= next_told_s:
            next_told_s = elapsed_s + PROGRESS_S
            waiting = [process.name for process in state.processes if not process.ready]
            line = last_line(deployment.folder, waiting[0]) if waiting else ""
            on_progress(Progress(elapsed_s, len(state.processes) - len(waiting), len(state.processes), line))
        time.sleep(POLL_S)


def end_error(deployment: Deployment) -> EngineStartError:
    """Why ``deployment`` has ended, or is about to, and where its log is."""
    await_release(deployment.folder)
    state, folder = deployment.state, deployment.folder
    logs = [folder.log_file(process.name) for process in state.processes if process.process is not None]
    log = logs[0] if len(logs) == 1 else folder.logs_dir if logs else folder.supervisor_log
    when = "" if state.ready_at else " while it was starting"
    what = state.reason if state.phase is Phase.FAILED else f"was stopped{when}. {state.reason}".strip()
    fix = f"Log: {log}"
    if state.phase is Phase.FAILED and not state.ready_at:
        limits = (one.ready_timeout_s for one in deployment.spec.processes if what.startswith(f"{one.name} {LATE}"))
        for limit_s in limits:
            fix = f"If it was still loading, raise serving.ready_timeout_s in the stack, now {limit_s:g}. {fix}"
    return EngineStartError(f"{deployment.name}: {what}", fix=fix)


def _abandon(deployment: Deployment) -> None:
    """The lease is closed, so the supervisor is ending everything; see it through. Asked again, be quick."""
    try:
        end(deployment.folder)
    except KeyboardInterrupt:
        state = deployment.state
        if state.supervisor is not None:
            send(state.supervisor, signal.SIGTERM)
        end(deployment.folder)
        raise
