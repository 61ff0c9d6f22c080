"""Many launches through SGLang's own resolution in one process: importing SGLang is nearly all of the work."""

import json
import os
import runpy
from pathlib import Path
from typing import Any


def run(script: str, asked: str) -> list[dict[str, Any]]:
    """What the task ``script`` makes of each ``{"argv", "gpu"}`` of the JSON file ``asked``."""
    resolve = runpy.run_path(script)["run"]
    before, answers = dict(os.environ), []
    for each in json.loads(Path(asked).read_text()):
        try:
            answers.append(resolve(**each))
        except ImportError as error:  # what this SGLang lacks says nothing about the launch
            answers.append({"stage": "import", "error": {"type": "ImportError", "message": str(error)}})
        # The resolution of one launch sets variables that the next would read.
        os.environ.clear()
        os.environ.update(before)
    return answers
