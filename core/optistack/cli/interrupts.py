"""Ctrl-C while something is being started: it is told at once, since taking an engine down may last."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def told_at_once() -> Iterator[None]:
    """While inside, Ctrl-C says that things are being stopped before it raises KeyboardInterrupt."""
    told = False

    def interrupted(number: int, frame: FrameType | None) -> None:
        from optistack.cli import screen

        nonlocal told
        screen.note("Ending it." if told else "Stopping. Ctrl-C again ends it at once.")
        told = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
