"""``python -m optistack_kv_fp8``: the plugin's commands where optistack has no entry point, as on a GPU box."""

from __future__ import annotations

import sys

from optistack.cli.run import run_alone
from optistack_kv_fp8.commands import app

if __name__ == "__main__":
    sys.exit(run_alone(app, "optistack_kv_fp8"))
