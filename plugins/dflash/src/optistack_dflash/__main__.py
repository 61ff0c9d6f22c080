"""``python -m optistack_dflash``: the plugin's commands where optistack has no entry point, as on a GPU box."""

from __future__ import annotations

import sys

from optistack.cli.run import run_alone
from optistack_dflash.commands import app

if __name__ == "__main__":
    sys.exit(run_alone(app, "optistack_dflash"))
