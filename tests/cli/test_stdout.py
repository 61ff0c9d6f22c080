"""Whatever stdout is, the user is told why nothing could be printed, and never of a bug."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from optistack.cli import screen

STACKS = Path(__file__).resolve().parents[2] / "stacks"
PLAN = ["plan", "--backend", "sglang", "--stack", str(STACKS / "kimi-k2.6-b200x4.yaml")]


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["schema"], PLAN, [*PLAN, "--json"]])
@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        (">&-", "Error: Standard output is closed.\nFix: "),
        (">/dev/full", "Error: Standard output cannot be written: No space left on device.\nFix: "),
    ],
)
def test_what_cannot_be_printed_is_one_sentence_and_code_2(
    shell: SimpleNamespace, words: list[str], redirection: str, said: str
) -> None:
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *shell.argv, *words]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=shell.env, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 2


def test_an_error_that_cannot_be_printed_as_json_is_told_on_stderr(shell: SimpleNamespace) -> None:
    command = ["sh", "-c", 'exec "$@" >/dev/full', "sh", *shell.argv, "plan", "--json"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=shell.env, timeout=60)
    assert done.returncode == 2
    assert "There is no stack file" in done.stderr
    assert "No space left on device" in done.stderr
    assert "bug" not in done.stderr


def test_without_stderr_the_result_stays_clean(shell: SimpleNamespace) -> None:
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *shell.argv, "plan"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=shell.env, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")


def test_in_ascii_a_plan_has_replacements_and_json_escapes(shell: SimpleNamespace) -> None:
    env = {**shell.env, "PYTHONIOENCODING": "ascii"}

    def printed(*words: str) -> str:
        done = subprocess.run([*shell.argv, *PLAN, *words], capture_output=True, env=env, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode("utf-8" if "--script" in words else "ascii")

    here = {**shell.env, "PYTHONIOENCODING": "utf-8"}
    wanted = subprocess.run([*shell.argv, *PLAN], capture_output=True, env=here, timeout=60).stdout.decode()
    assert "?" in printed()
    assert len(printed()) == len(wanted)
    assert json.loads(printed("--json"))["spec"]["name"]
    assert printed("--script", "-").startswith("#!/bin/sh")


def test_what_was_printed_is_out_before_a_command_that_stays_says_how_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(pipe, encoding="utf-8"))
    print("tiny serves at http://127.0.0.1:8000")
    screen.note("Ctrl-C stops it.")
    assert pipe.getvalue() == b"tiny serves at http://127.0.0.1:8000\n"
