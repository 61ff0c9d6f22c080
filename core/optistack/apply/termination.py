"""Make SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that ``finally`` and ``with`` still run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived. A KeyboardInterrupt, so that whoever handles that handles this."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@contextmanager
def termination_raises() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise Interrupted in the main thread."""
    with termination_told(_raise):
        yield


@contextmanager
def termination_told(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block ``handler`` is told SIGTERM and SIGHUP.

    A signal that is ignored stays ignored (``nohup``). In another thread this does nothing: Python runs signal
    handlers in the main one only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    try:
        for signum in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) is not signal.SIG_IGN:
                before[signum] = signal.signal(signum, handler)
        yield
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)


def _raise(signum: int, frame: FrameType | None) -> None:
    raise Interrupted(signum)
