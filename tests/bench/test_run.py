"""What a run leaves behind when it is told to stop: a result that says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.bench.conftest import Engine, Script


def test_a_run_that_is_terminated_is_kept_and_marked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Engine(Script(token_s=0.01)) as engine:
        words = ["bench", "--endpoint", engine.url, "--domain", "made", "--turns", "1", "--think-limit", "0"]
        command = [sys.executable, "-m", "optistack.cli", *words, "--sessions", "500", "--out", str(out)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        journal, deadline = out / "requests.jsonl", time.monotonic() + 60
        while not (journal.exists() and journal.read_text().count("\n") >= 3):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)
    result = json.loads((out / "result.json").read_text())
    assert (process.returncode, result["state"], result["why"]) == (130, "partial", "It was interrupted.")
    assert journal.read_text().count("\n") >= 3


@pytest.mark.parametrize("answers", [0, 1, 7, 20, 33])
def test_a_run_that_is_terminated_at_any_moment_says_one_sentence(tmp_path: Path, answers: int) -> None:
    with Engine(Script(token_s=0.0005)) as engine:
        words = ["--endpoint", engine.url, "--domain", "made", "--turns", "2", "--think-limit", "0", "--users", "4"]
        command = [sys.executable, "-m", "optistack.cli", "bench", *words, "--sessions", "500"]
        log = tmp_path / "err"
        with log.open("w") as err:
            process = subprocess.Popen([*command, "--out", str(tmp_path / "out")], stderr=err, stdout=err)
        deadline = time.monotonic() + 60
        while len(engine.asked) < max(1, answers):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 130
    said = log.read_text().splitlines()
    assert said[-1] == "Interrupted."
    assert [line for line in said[:-1] if not line.startswith(("Measuring", "  "))] == [], said
