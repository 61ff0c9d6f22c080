"""``python -m optistack_routing.workers.worker OWNER_FD LISTENER_FD``: started by the router, not by hand."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from time import monotonic

import uvloop

from optistack_routing.admin.state import snapshot
from optistack_routing.proxy.record import Recorder
from optistack_routing.router.config import Config
from optistack_routing.router.front import TICK_S, FrontSide, build_front
from optistack_routing.workers.remote import RemoteDesk

COUNTS_EVERY_TICKS = 4


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
    ticking = loop.create_task(_tick(front, desk, recorder))
    await desk.told_to_stop.wait()
    await front.drain()
    desk.say({"counts": snapshot(recorder)})
    ticking.cancel()
    await front.stop()


async def _tick(front: FrontSide, desk: RemoteDesk, recorder: Recorder) -> None:
    ticks = 0
    while True:
        front.tick(monotonic())
        if ticks % COUNTS_EVERY_TICKS == 0:
            desk.say({"counts": snapshot(recorder)})
        ticks += 1
        await asyncio.sleep(TICK_S)


def main() -> None:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.INFO)
    owner, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    owner.setblocking(False)
    listener.setblocking(False)
    uvloop.run(work(owner, listener))


if __name__ == "__main__":
    main()
