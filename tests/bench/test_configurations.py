"""The lists of configurations for runs that need a GPU: whole, and startable as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LISTS = sorted(path for path in (ROOT / "benchmarks" / "configurations").glob("*.yaml") if "title" in path.read_text())
KNOWN = {"name", "stack", "backend", "without", "set", "engine_args", "env", "apply", "bench", "conformance"}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_list_names_each_configuration_once_and_its_stack_is_there(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    rows = [{**document["common"], **one} for one in document["configurations"]]
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        assert set(row) <= KNOWN
        assert (path.parent / row["stack"]).is_file()


def test_a_list_is_planned_without_starting_anything(tmp_path: Path) -> None:
    """A stack whose model is at hand in the repository: its shape."""
    stack = ROOT / "stacks" / "kimi-k2.6-b200x4.yaml"
    one = {"name": "kimi", "stack": str(stack), "backend": "sglang"}
    (tmp_path / "list.yaml").write_text(yaml.safe_dump({"title": "t", "configurations": [one]}))
    words = [str(tmp_path / "list.yaml"), "--out", str(tmp_path / "out"), "--plan-only"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run_configurations.py"), *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "out" / "rows.json").read_text())["rows"]
    assert row["planned_kv_tokens"] > 0
    assert row["bandwidth_steps_s"] > 0
