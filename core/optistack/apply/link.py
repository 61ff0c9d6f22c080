"""The supervisor's end of the link to its guardian: when the guardian dies, another one takes its place."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable

from optistack.apply.folder import DeploymentFolder
from optistack.apply.guardian import command, keeper_environment

DELAYS_S = (0.1, 60.0)
"""Before another one is started: at first, and at most; each time twice as long, as something may be killing them."""


class GuardianLink:
    """``pid`` is the guardian's now. ``link`` and ``lock`` are descriptors; ``changed`` is called when there is another
    guardian, ``failed`` with the reason when there can be none."""

    def __init__(
        self,
        folder: DeploymentFolder,
        deployment_id: str,
        *,
        lock: int,
        link: int,
        pid: int,
        changed: Callable[[], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self.pid = pid
        self._arguments = (str(folder.path), deployment_id, str(lock), "--watch")
        self._id, self._lock, self._link = deployment_id, lock, socket.socket(fileno=link)
        self._changed, self._failed = changed, failed
        self._delay_s = DELAYS_S[0]
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._link, self._died)

    def _died(self) -> None:
        self._loop.remove_reader(self._link)
        self._link.close()
        self._loop.call_later(self._delay_s, self._replace)
        self._delay_s = min(2 * self._delay_s, DELAYS_S[1])

    def _replace(self) -> None:
        self._link, theirs = socket.socketpair()
        with theirs:
            try:
                guardian = subprocess.Popen(
                    command("guardian", *self._arguments, str(theirs.fileno())),
                    env=keeper_environment(self._id),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(self._lock, theirs.fileno()),
                    start_new_session=True,
                )
            except OSError as error:  # its Python is gone; the engine runs on without a guardian
                self._failed(error)
                return
        self.pid = guardian.pid
        self._changed()
        self._loop.add_reader(self._link, self._died)
