"""The workers as processes: started, restarted when one dies, and stopped together."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from optistack_routing.admin.state import merged, snapshot
from optistack_routing.proxy.record import Recorder
from optistack_routing.router.config import Config
from optistack_routing.router.control import Control
from optistack_routing.workers.owner import WorkerLink

log = logging.getLogger("optistack.route")

RESTART_S = 1.0
KILL_S = 5.0


@dataclass
class Crew:
    """One worker for each of ``listeners``. They stay open here: a worker that starts again finds who has connected."""

    config: Config
    control: Control
    listeners: list[socket.socket]
    _links: dict[int, WorkerLink] = field(default_factory=dict)
    _processes: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    _before: dict[str, Any] = field(default_factory=lambda: snapshot(Recorder()))
    _restart_s: dict[int, float] = field(default_factory=dict)
    _said_ready: bool | None = None
    _stopping: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        for index in range(len(self.listeners)):
            await self._start(index)

    def counts(self) -> Iterable[dict[str, Any]]:
        return [self._before, *(link.counts for link in self._links.values())]

    def tick(self, now_s: float) -> None:
        ready = self.control.ready()
        if ready is not self._said_ready:
            self._said_ready = ready
            for link in self._links.values():
                link.say({"ready": ready})
        for index in [index for index, due_s in self._restart_s.items() if now_s >= due_s]:
            del self._restart_s[index]
            task = asyncio.get_running_loop().create_task(self._start_again(index))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def reopen(self) -> None:
        for link in self._links.values():
            link.say({"reopen": True})

    async def drain(self) -> None:
        """Let every worker finish what it has, within the configuration's time, which the workers keep."""
        self._stopping = True
        for link in self._links.values():
            link.say({"stop": True})
        for listener in self.listeners:
            listener.close()
        await asyncio.gather(*(process.wait() for process in self._processes.values()))

    async def stop(self) -> None:
        self._stopping = True
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in self._processes.values()))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start_again(self, index: int) -> None:
        try:
            await self._start(index)
        except Exception:  # no more processes or descriptors, say, which may pass
            log.exception("worker %d does not start; it is tried again", index)
            self._restart_s[index] = monotonic() + RESTART_S

    async def _start(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        listener = self.listeners[index]
        with theirs, ExitStack() as unless_started:
            unless_started.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "optistack_routing.workers.worker",
                str(theirs.fileno()),
                str(listener.fileno()),
                pass_fds=(theirs.fileno(), listener.fileno()),
                start_new_session=True,  # a Ctrl-C in the terminal is the owner's to act on
            )
            unless_started.pop_all()
        self._processes[index] = process
        _, link = await loop.create_unix_connection(
            lambda: WorkerLink(self.control.desk, partial(self._lost, index)), sock=ours
        )
        self._links[index] = link
        link.say({"config": self.config.model_dump(mode="json")})
        link.say({"ready": self.control.ready()})

    def _lost(self, index: int, link: WorkerLink) -> None:
        self._before = merged([self._before, link.counts])
        if self._links.get(index) is link:
            del self._links[index]
        if not self._stopping:
            log.warning("worker %d has ended; another is started", index)
            self._restart_s[index] = monotonic() + RESTART_S
