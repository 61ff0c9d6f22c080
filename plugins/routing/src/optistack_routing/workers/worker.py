"""``python -m optistack_routing.workers.worker OWNER_FD LISTENER_FD``: started by the router, not by hand."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from dataclasses import dataclass

import uvloop

from optistack_routing.admin.state import snapshot
from optistack_routing.proxy.record import Recorder
from optistack_routing.router.clock import ticking
from optistack_routing.router.config import Config
from optistack_routing.router.front import build_front
from optistack_routing.workers.remote import RemoteDesk

COUNTS_EVERY_S = 1.0


async def work(owner: socket.socket, listener: socket.socket) -> None:
    """Serve until the owner says stop, or is gone; then finish what is under way."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: None)
    _, desk = await loop.create_unix_connection(RemoteDesk, sock=owner)
    config = Config.model_validate(await desk.config)
    recorder = Recorder(ready=lambda: desk.ready)
    front = build_front(config, desk, recorder)
    desk.reopen = front.reopen
    await front.serve(listener)
    async with ticking(front, Telling(desk, recorder)):
        await desk.told_to_stop.wait()
        await front.drain()
        desk.say({"counts": snapshot(recorder)})
    await front.stop()


@dataclass
class Telling:
    """Tells the owner now and then what this process has counted."""

    desk: RemoteDesk
    recorder: Recorder
    due_s: float = 0.0

    def tick(self, now_s: float) -> None:
        if now_s >= self.due_s:
            self.due_s = now_s + COUNTS_EVERY_S
            self.desk.say({"counts": snapshot(self.recorder)})


def main() -> None:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.INFO)
    owner, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    owner.setblocking(False)
    listener.setblocking(False)
    uvloop.run(work(owner, listener))


if __name__ == "__main__":
    main()
