"""A stand-in for ``optistack apply``: starts the spec in argv[1]; with ``--foreground`` it stays until it is ended."""

import sys
from pathlib import Path

from optistack.apply.launch import DeploymentSpec
from optistack.apply.start import attached, start
from optistack.errors import OptistackError

spec = DeploymentSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
try:
    if "--foreground" in sys.argv:
        with attached(spec) as live:
            print("ready", flush=True)
            live.wait()
    else:
        start(spec)
        print("ready", flush=True)
except OptistackError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
except KeyboardInterrupt:
    sys.exit(130)
