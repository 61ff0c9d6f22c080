"""The command line. One module a command; a command imports what it needs when it runs, not before."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``optistack`` program."""
    from optistack.cli.run import run

    sys.exit(run(sys.argv[1:]))
