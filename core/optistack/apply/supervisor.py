"""The supervisor: starts the processes of a deployment, watches them, and ends them together.

``python -m optistack.apply.supervisor FOLDER LOCK_FD LEASE_FD LINK_FD GUARDIAN_PID``, started by the guardian.

It runs until one of these, and then ends everything: SIGTERM, SIGINT or SIGHUP; the end of one of the processes (a
deployment with a part missing is not what was planned); a process that is not ready in time; the end of the lease
before the command that holds it has written ``COMMIT`` there, whatever ended that command. Processes of one group stand
in for each other: once all is ready, the end of one that leaves another of its group is written down, and the rest
goes on. Nothing is ever started again.

It adopts every orphan below it, so that "no descendants left" means that nothing is left. It has one thread, since
a process that asks to die with its parent dies with the thread that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optistack.apply.child import marked_process, start_child, until_ready
from optistack.apply.diagnose import start_failure
from optistack.apply.folder import DeploymentFolder
from optistack.apply.guardian import COMMIT
from optistack.apply.launch import DeploymentSpec, ProcessSpec
from optistack.apply.link import GuardianLink
from optistack.apply.logs import cap_log, log_size_bytes, read_log
from optistack.apply.processes import ProcessId, adopt_orphans, descendants, identify, kill_all, send
from optistack.apply.shared_memory import remove_left
from optistack.apply.state import LATE, Phase, State, write_state

# How often new members are recorded: most processes are made while an engine starts.
WATCH_STARTING_S, WATCH_S = 0.5, 10.0
# Processes whose master has ended have nothing left to do but to go.
ORPHAN_GRACE_S = 3.0
# A process may hang in a driver; the next look, or the end of it all, finds it again.
REST_GRACE_S = 5.0
# What never served has no request to finish; vLLM 0.32, told to end while it loaded, took the whole grace and more.
UNREADY_GRACE_S = 5.0


class Supervisor:
    """One run. ``lock``, ``lease`` and ``link`` are descriptors: see folder.py, ``COMMIT`` and link.py."""

    def __init__(self, folder: DeploymentFolder, lock: int, lease: int, link: int, guardian_pid: int) -> None:
        self.folder, self.lease = folder, lease
        self.spec = DeploymentSpec.model_validate_json(folder.spec_file.read_bytes())
        self.state = State.model_validate_json(folder.state_file.read_bytes())
        self.guardian = GuardianLink(
            folder,
            self.state.id,
            lock=lock,
            link=link,
            pid=guardian_pid,
            changed=lambda: self._record(guardian=identify(self.guardian.pid)),
            failed=lambda error: _say(f"no new guardian: {error}"),
        )
        self.running: dict[int, tuple[ProcessSpec, subprocess.Popen[bytes]]] = {}
        self.log_when_ready_bytes: dict[str, int] = {}
        self.loop = asyncio.get_running_loop()
        self.verdict: asyncio.Future[tuple[Phase, str]] = self.loop.create_future()
        self.hurry = self.unwritten = False

    async def run(self) -> None:
        self.loop.set_exception_handler(self._broken)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self.loop.add_signal_handler(signum, self._asked_to_stop, signum)
        self.loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self.loop.add_reader(self.lease, self._read_lease)
        self._record(supervisor=identify(os.getpid()), guardian=identify(self.guardian.pid))
        tasks = [self._task(self._watch())]
        for process in self.spec.processes:
            if self._start(process):
                tasks.append(self._task(self._wait_until_ready(process)))
        phase, reason = await self.verdict
        for task in tasks:
            task.cancel()
        self._record(phase=Phase.STOPPING, reason=reason)
        await self._end_all()
        self._record(phase=phase, members=(), removed=self.state.removed + remove_left(self.state.id))

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        # An exception in a callback reaches _broken; one in a task would wait to be asked for.
        task.add_done_callback(lambda done: None if done.cancelled() else done.result())
        return task

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error of this program must not leave an engine that nobody watches."""
        loop.default_exception_handler(context)
        self._end(Phase.FAILED, "its supervisor failed; supervisor.log says how.")

    def _record(self, **changes: Any) -> None:
        was, self.state = self.state.phase, self.state.model_copy(update=changes)
        try:
            write_state(self.folder, self.state)
            self.unwritten = False
        except OSError as error:  # a full disk is no reason to lose an engine, let alone to keep one
            self.unwritten = True  # until there is room
            _say(f"state.json was not written: {error}")
            if was is Phase.STARTING:  # who waits for it would never hear that it is ready
                self._end(Phase.FAILED, f"its state cannot be written: {error.strerror}.")

    def _record_process(self, name: str, **changes: Any) -> None:
        processes = self.state.processes
        self._record(processes=tuple(p.model_copy(update=changes) if p.name == name else p for p in processes))

    def _end(self, phase: Phase, reason: str) -> None:
        if not self.verdict.done():
            self.verdict.set_result((phase, reason))

    def _asked_to_stop(self, signum: signal.Signals) -> None:
        self.hurry = self.verdict.done()  # asked again: no more patience
        self._end(Phase.STOPPED, "" if signum is signal.SIGTERM else f"its supervisor received {signum.name}")

    def _read_lease(self) -> None:
        committed = os.read(self.lease, 1) == COMMIT
        self.loop.remove_reader(self.lease)
        os.close(self.lease)
        if not committed:
            self._end(Phase.STOPPED, "the command that started it ended")

    def _start(self, process: ProcessSpec) -> bool:
        try:
            child = start_child(process, self.folder, self.state.id)
        except (OSError, subprocess.SubprocessError) as error:
            self._end(Phase.FAILED, f"{process.name} cannot be run: {error}.")
            return False
        self.running[child.pid] = (process, child)
        self._record_process(process.name, process=identify(child.pid))
        return True

    async def _wait_until_ready(self, process: ProcessSpec) -> None:
        try:
            await until_ready(process)
        except TimeoutError:
            waited = f"{process.ready_url} did not answer 200 within {process.ready_timeout_s:g} s"
            self._end(Phase.FAILED, f"{process.name} {LATE}: {waited}. {self._diagnose(process, None)}")
            return
        self.log_when_ready_bytes[process.name] = log_size_bytes(self.folder, process.name)
        self._record_process(process.name, ready=True)
        if all(p.ready for p in self.state.processes):
            self._record(phase=Phase.READY, ready_at=datetime.now(UTC))

    def _reap(self) -> None:
        """Collect every child that ended: processes of the spec, adopted orphans, a replaced guardian."""
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = reaped
                if pid in self.running:
                    process, child = self.running.pop(pid)
                    child.returncode = os.waitstatus_to_exitcode(status)
                    self._process_ended(process, child.returncode)

    def _process_ended(self, process: ProcessSpec, exit_code: int) -> None:
        served = any(p.ready for p in self.state.processes if p.name == process.name)
        self._record_process(process.name, exit_code=exit_code, ready=False)
        if self.verdict.done():
            return
        if self._goes_on_without(process):
            self._record_process(process.name, reason=self._diagnose(process, exit_code))
            self.loop.call_soon(self._kill, process.name)
        else:
            when = "stopped working" if served else "did not start"
            self._end(Phase.FAILED, f"{process.name} {when}: {self._diagnose(process, exit_code)}")

    def _goes_on_without(self, process: ProcessSpec) -> bool:
        stand_in = any(other.group == process.group for other, _ in self.running.values())
        return bool(process.group) and stand_in and self.state.phase is Phase.READY

    def _kill(self, name: str) -> None:
        """Kill a process, if it has not ended, and what it has left behind, which may hold memory of device or host."""
        kill_all(lambda: marked_process(self.state.id, name), reap=self._reap, give_up_s=REST_GRACE_S)
        if removed := remove_left(self.state.id, name):
            self._record(removed=self.state.removed + removed)

    def _diagnose(self, process: ProcessSpec, exit_code: int | None) -> str:
        # Exceptions from before it was ready were no obstacle.
        log = read_log(self.folder, process.name, after_bytes=self.log_when_ready_bytes.get(process.name, 0))
        return start_failure(log, exit_code, patterns=process.cause_patterns)

    async def _watch(self) -> None:
        while True:
            members = tuple(sorted(self._members(), key=lambda process: process.pid))
            if self.unwritten or members != self.state.members:
                self._record(members=members)
            for process in self.spec.processes:
                with contextlib.suppress(OSError):  # for want of space, as a rule; it is tried again
                    cap_log(self.folder, process.name)
            await asyncio.sleep(WATCH_S if self.state.phase is Phase.READY else WATCH_STARTING_S)

    def _members(self) -> list[ProcessId]:
        return [process for process in descendants(os.getpid()) if process.pid != self.guardian.pid]

    async def _end_all(self) -> None:
        """End everything: SIGTERM to the processes of the spec, then to all that is left, then SIGKILL.

        The processes of the spec come first, with half of the grace: each knows best how to end its own children. Those
        that never served are killed early, while others may still be at their last requests.
        """
        served = {process.name for process in self.state.processes if process.ready}
        start, grace_s = self.loop.time(), self.spec.stop_timeout_s
        if not served:
            grace_s = min(grace_s, UNREADY_GRACE_S)
        for process in filter(None, map(identify, self.running)):
            send(process, signal.SIGTERM)
        if served:
            await self._until(lambda: served.issuperset(self._names()), start + min(grace_s, UNREADY_GRACE_S))
            for name in self._names() - served:
                self._kill(name)
        await self._until(lambda: not self.running, start + grace_s / 2)
        for process in self._members():
            send(process, signal.SIGTERM)
        await self._until(lambda: not self.running, start + grace_s)
        await self._until(lambda: not self._members(), min(start + grace_s, self.loop.time() + ORPHAN_GRACE_S))
        kill_all(self._members, reap=self._reap)

    def _names(self) -> set[str]:
        """The processes of the spec that run."""
        return {process.name for process, _ in self.running.values()}

    async def _until(self, done: Callable[[], bool], deadline: float) -> None:
        while not done() and not self.hurry and self.loop.time() < deadline:
            await asyncio.sleep(0.05)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # supervisor.log is on the disk that is full
        print(text, file=sys.stderr, flush=True)


async def _supervise(folder: DeploymentFolder, *numbers: int) -> None:
    await Supervisor(folder, *numbers).run()


def main(arguments: list[str]) -> None:
    adopt_orphans()
    os.chdir("/")
    asyncio.run(_supervise(DeploymentFolder(Path(arguments[0])), *map(int, arguments[1:])))


if __name__ == "__main__":
    main(sys.argv[1:])
