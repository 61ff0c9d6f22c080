"""One router process: everything that runs in it, put together, started and stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Coroutine
from typing import Any

from optistack_routing.admin.state import snapshot
from optistack_routing.proxy.record import Recorder
from optistack_routing.router.clock import ticking
from optistack_routing.router.config import Config
from optistack_routing.router.control import build_control
from optistack_routing.router.front import FrontSide, build_front
from optistack_routing.router.listen import listen, listen_alike
from optistack_routing.router.precise import follow
from optistack_routing.workers.crew import Crew

log = logging.getLogger("optistack.route")


async def serve(config: Config) -> None:
    """Run the router until SIGTERM or SIGINT, then let what is under way end; a second signal ends it at once.

    Raises InputError for what cannot be used.
    """
    control = build_control(config)
    recorder = Recorder(ready=control.ready)
    front = build_front(config, control.desk, recorder)  # with workers too: what is wrong is said here, and once
    listeners = listen_alike(config.host, config.port, config.workers)
    admin_listener = listen(config.admin_host, config.admin_port)
    stop = Signals()
    await control.start()
    await control.serve_admin(admin_listener)
    data: FrontSide | Crew = front
    if config.workers == 1:
        control.counts = lambda: [snapshot(recorder)]
        if front.settings.overlap is not None and config.precise is not None:
            control.precise = front.settings.overlap.state
            follow(control.roster, front.settings.overlap, config.precise)
        await front.serve(listeners[0])
    else:
        await front.stop()  # each worker has its own
        data = crew = Crew(config, control, listeners)
        control.counts = crew.counts
        await crew.start()
    log.info("serving %s, admin %s", shown(listeners[0], front.tls), shown(admin_listener, control.admin_tls))
    if not control.roster.members:
        log.warning("no replica yet: requests wait and then get 503 until one joins (POST /replicas adds one)")
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, data.reopen)
    async with ticking(control, data):
        await stop.asked.wait()
        log.info("draining: %d requests in flight", control.ledger.in_flight)
        await first(data.drain(), stop.at_once.wait())
    await data.stop()
    await control.stop()
    log.info("stopped")


class Signals:
    """``asked`` at the first SIGTERM or SIGINT, ``at_once`` at the second."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        (self.at_once if self.asked.is_set() else self.asked).set()


async def first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of ``waits`` is over, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()


def shown(listener: socket.socket, tls: ssl.SSLContext | None) -> str:
    host, port = listener.getsockname()[:2]
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
