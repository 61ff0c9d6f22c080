"""The command line. One module a command; a command imports what it needs when it runs, not before."""

from __future__ import annotations

import gc
import sys

OBJECTS_BEFORE_COLLECTING = 100_000
"""Importing makes many objects and hardly any garbage: looking for it at every 700 costs a tenth of a plan's time."""


def main() -> None:
    """Entry point of the ``optistack`` program."""
    gc.set_threshold(OBJECTS_BEFORE_COLLECTING)
    from optistack.cli.run import run

    sys.exit(run(sys.argv[1:]))
