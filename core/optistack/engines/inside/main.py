"""Run one task of this folder: ``python main.py TASK ARGUMENTS RESULT``.

ARGUMENTS is a JSON object, which the task's ``run`` takes as keyword arguments. RESULT is the file for its answer,
since engines print to standard output as they are imported: ``{"answer": ...}`` or ``{"error": {"type", "message",
"module"}}``.
"""

import json
import runpy
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    task, arguments, result = sys.argv[1:]
    # Python put this folder first on the path; the engine must not find these files under its own modules' names.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    try:
        run = runpy.run_path(str(HERE / f"{task}.py"))["run"]
        outcome = {"answer": run(**json.loads(arguments))}
    except Exception as error:
        traceback.print_exc()
        outcome = {
            "error": {
                "type": type(error).__name__,
                "message": str(error),
                "module": (getattr(error, "name", None) or "") if isinstance(error, ImportError) else "",
            }
        }
    Path(result).write_text(json.dumps(outcome), encoding="utf-8")
    return 1 if "error" in outcome else 0


if __name__ == "__main__":
    sys.exit(main())
