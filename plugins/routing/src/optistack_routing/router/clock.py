"""The clock of a process: what has to be looked at several times a second."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Protocol

log = logging.getLogger("optistack.route")

TICK_S = 0.25


class Ticked(Protocol):
    def tick(self, now_s: float) -> None: ...


class ticking:
    """Runs the clocks of the given parts while its block runs."""

    def __init__(self, *parts: Ticked) -> None:
        self._parts = parts

    async def __aenter__(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            now_s = monotonic()
            for part in self._parts:
                try:
                    part.tick(now_s)
                except Exception:  # a clock that stops would stop every timeout
                    log.exception("a tick failed")
            await asyncio.sleep(TICK_S)
