"""What a run leaves behind when it is told to stop: a result that says so."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.bench.conftest import Engine, Script

from optistack_bench.ending import run_until_told


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


@pytest.mark.parametrize(
    ("answers", "signum"),
    [*((answers, signal.SIGTERM) for answers in (0, 1, 7, 20, 33)), (1, signal.SIGINT), (20, signal.SIGINT)],
)
def test_a_run_that_is_ended_at_any_moment_says_what_is_kept(tmp_path: Path, answers: int, signum: int) -> None:
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
        process.send_signal(signum)
        assert process.wait(timeout=30) == 130
    said = log.read_text().splitlines()
    assert said[-1] == "Interrupted."
    assert [line for line in said[:-1] if not line.startswith(("Measuring", "  ", "Kept in"))] == [], said
    kept = [line for line in said if line.startswith("Kept in")]
    journal = tmp_path / "out" / "requests.jsonl"
    if journal.exists():
        count = journal.read_text().count("\n")
        assert kept == [
            f"Kept in {tmp_path}/out: result.json, marked as partial, and requests.jsonl with {count} requests."
        ]
    else:
        assert kept == []


def test_work_that_an_interruption_comes_before_is_not_complained_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(main: Coroutine[Any, Any, None]) -> None:
        main.close()
        raise KeyboardInterrupt

    async def work() -> None: ...

    monkeypatch.setattr(asyncio, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_until_told(work())
    gc.collect()  # a complaint would be an error here


@pytest.mark.parametrize("command", [["bench"], ["bench", "sweep", "--concurrency", "1,2"]])
def test_a_full_disk_takes_no_figure(tmp_path: Path, command: list[str]) -> None:
    out = tmp_path / "out"
    room = 6_000  # bytes of a file: for some requests, and no repeat
    with Engine(Script()) as engine:
        words = ["--endpoint", engine.url, "--domain", "made", "--turns", "2", "--think-limit", "0", "--warmup", "0"]
        process = subprocess.run(
            [sys.executable, "-m", "optistack.cli", *command, *words, "--sessions", "40", "--out", str(out)],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert process.returncode == 1, process.stderr
    assert "tokens/s/user" in process.stdout and "Little's law" in process.stdout
    lines = (out / "requests.jsonl").read_text().splitlines()
    assert [json.loads(line)["session"] for line in lines], "whole lines alone"
    assert f"{out}/requests.jsonl ends after {len(lines)} requests: File too large." in process.stderr
    assert f"{out}/result.json has 0 repeats and takes no more: File too large." in process.stderr
    assert json.loads((out / "result.json").read_text())["points"] == []
