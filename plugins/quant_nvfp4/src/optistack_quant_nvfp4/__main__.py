"""``python -m optistack_quant_nvfp4``: the plugin's commands where optistack has no entry point, as on a GPU box."""

from __future__ import annotations

import sys

from optistack.errors import InputError, OptistackError
from optistack_quant_nvfp4.commands import app


def main() -> None:
    try:
        app()
    except OptistackError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(InputError.exit_code)


if __name__ == "__main__":
    main()
