"""The command line. One module a command; a command imports what it needs when it runs, not before."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import NoReturn

OBJECTS_BEFORE_COLLECTING = 100_000
"""Importing makes many objects and hardly any garbage: looking for it at every 700 costs a tenth of a plan's time."""


def main() -> None:
    """Entry point of the ``optistack`` program."""
    gc.set_threshold(OBJECTS_BEFORE_COLLECTING)
    kept = [one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]
    # While modules are imported nothing is there to be undone, and an exception would be lost, or show where it was.
    for signum in kept:
        signal.signal(signum, lambda *_: _interrupted())
    from optistack.cli.run import run

    try:
        if signal.SIGINT in kept:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before or behind the command, which handles its own
        _interrupted()
    sys.exit(code)


def _interrupted() -> NoReturn:
    try:
        os.write(2, b"Interrupted.\n")
    finally:
        os._exit(130)
