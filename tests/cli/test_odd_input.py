"""Input that nobody means to give: told in a sentence with the mend, never as a bug, and before anything is begun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, Field

from optistack import hookimpl
from optistack.plugin import Domain, PluginInfo

Optistack = Callable[..., Any]
KIMI = Path(__file__).resolve().parents[2] / "stacks" / "kimi-k2.6-b200x4.yaml"


@pytest.mark.parametrize("size", ["nan", "inf", "1e308", "0", "-3"])
def test_a_gpu_has_a_size(optistack: Optistack, size: str) -> None:
    ran = optistack("size", "--stack", KIMI, "--backend", "sglang", "--hbm-gb", size)
    assert ran.code == 2
    assert ran.err.startswith(f"Error: --hbm-gb {float(size):g} is no size of a GPU.\nFix: ")


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("nothing", "There is no Python at {here}/nothing."),
        (".", "{here} is a folder, not a Python executable."),
        ("./file", "{here}/file is not executable."),
        ("/bin/true", "/bin/true is no Python: its pip fetched nothing."),
    ],
)
def test_a_model_is_not_fetched_with_what_is_no_python(
    optistack: Optistack, home: Path, python: str, says: str
) -> None:
    (home / "file").touch()
    ran = optistack("model", "fetch", "smollm2-135m", "--engine-python", python)
    assert ran.code == 2
    assert f"Error: {says.format(here=home)}\nFix: " in ran.err
    assert ("Downloading" in ran.err) == (python == "/bin/true")


def test_the_python_to_make_a_model_with_is_found_on_the_path(
    optistack: Optistack, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "bin").mkdir()
    (home / "bin" / "some-python").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    ran = optistack("model", "fetch", "smollm2-135m", "--engine-python", "some-python")
    assert f"{home}/bin/some-python is no Python" in ran.err


@pytest.mark.parametrize("words", [("status",), ("status", "--json"), ("down",), ("status", "name")])
def test_what_runs_is_not_known_without_a_state_folder(
    optistack: Optistack, home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "not" / "yet"))
    assert "no folder" not in optistack(*words).err
    (home / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    ran = optistack(*words)
    assert ran.code == 2
    assert f"Error: {home}/file is no folder, so what runs is not known.\nFix: " in ran.err


@pytest.mark.parametrize("leads_to", ["nowhere", "link"])
def test_doctor_sees_links_that_lead_nowhere(
    optistack: Optistack, home: Path, monkeypatch: pytest.MonkeyPatch, leads_to: str
) -> None:
    (home / "link").symlink_to(leads_to)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "link"))
    assert f"Make {home}/link a folder that you may write to" in _mend(optistack, "cache")


@pytest.mark.parametrize(("name", "inside"), [("cache", "engines"), ("cache", "models"), ("state", "deployments")])
def test_doctor_sees_files_where_folders_are_due(optistack: Optistack, name: str, inside: str) -> None:
    folder = Path(os.environ[f"XDG_{name.upper()}_HOME"], "optistack")
    folder.mkdir(parents=True)
    (folder / inside).touch()
    assert f"Make {folder / inside} a folder that you may write to" in _mend(optistack, name)


def _mend(optistack: Optistack, name: str) -> str:
    ran = optistack("doctor", "--json")
    assert ran.code == 1
    return str(next(check["mend"] for check in ran.json["checks"] if check["name"] == name))


@pytest.mark.parametrize("key", ["ü", "two\nlines"])
@pytest.mark.parametrize("command", ["verify", "conformance", "bench"])
def test_a_key_that_no_header_can_carry_is_told_and_not_shown(
    optistack: Optistack, monkeypatch: pytest.MonkeyPatch, command: str, key: str
) -> None:
    monkeypatch.setenv("OPTISTACK_API_KEY", key)
    further = ["--stack", KIMI, "--backend", "sglang"] if command == "verify" else []
    ran = optistack(command, "--endpoint", "http://127.0.0.1:1", *further)
    assert ran.code == 2
    assert "Error: The API key has characters that no header of HTTP may have.\nFix: " in ran.err
    assert key not in ran.err


@pytest.mark.parametrize("proxy", ["nonsense://x", "socks5://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used_is_named(
    optistack: Optistack, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    if proxy.startswith("socks"):
        monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", proxy)
    ran = optistack("conformance", "--endpoint", "http://engine.invalid:1")
    assert ran.code == 2
    assert "Error: The proxy that the environment names for http://engine.invalid:1 cannot be used: " in ran.err
    assert "Fix: Mend HTTP_PROXY, HTTPS_PROXY or ALL_PROXY" in ran.err


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("serving.kv_memory_gib=1.0e+308", "serving.kv_memory_gib must be at most "),
        ("parallel.attention_data=8", "Attention data parallel 8 does not divide tensor parallel 4."),
        (f"parallel.attention_data={10**30}", "does not divide tensor parallel 4."),
    ],
)
def test_a_size_beyond_the_machine_is_wrong_input(optistack: Optistack, setting: str, says: str) -> None:
    ran = optistack("plan", "--stack", KIMI, "--backend", "sglang", "--set", setting)
    assert ran.code == 2
    assert ran.err.startswith("Error: ") and says in ran.err.splitlines()[0]


def test_an_option_that_a_plugin_of_the_command_line_lacks_is_given_there(
    optistack: Optistack, install: Callable[..., None]
) -> None:
    class Options(BaseModel):
        draft: str = Field(description="The draft.")

    module = ModuleType("drafter")

    @hookimpl
    def optistack_plugin() -> PluginInfo:
        return PluginInfo(name="drafter", domain=Domain.SPECULATION, version="1", summary="Drafts.", options=Options)

    vars(module).update(optistack_plugin=optistack_plugin)
    install(drafter=module)
    ran = optistack("plan", "--stack", KIMI, "--backend", "sglang", "-p", "drafter")
    assert ran.code == 2
    assert "option draft of plugin drafter is missing." in ran.err
    assert "Fix: Add --set drafter.draft=...; it means: The draft." in ran.err


def test_a_stack_file_without_a_model_is_told_what_to_add(optistack: Optistack, home: Path) -> None:
    (home / "optistack.yaml").write_text("name: x\n")
    assert "model is missing.\nFix: Add model.\n" in optistack("plan").err


def _program(shell: SimpleNamespace, *words: object, cwd: Path | None = None, **env: str) -> Any:
    argv = [*shell.argv, *map(str, words)]
    return subprocess.run(argv, env={**shell.env, **env}, cwd=cwd, capture_output=True)


def test_the_c_locale_gets_replacements(shell: SimpleNamespace) -> None:
    ran = _program(shell, "plan", "--stack", KIMI, "--backend", "sglang", LC_ALL="C", PYTHONUTF8="0")
    assert ran.returncode == 0, ran.stderr
    assert b"?" in ran.stdout and ran.stdout.isascii()


@pytest.mark.parametrize("columns", ["0", "x"])
def test_an_error_is_shown_however_wide_a_terminal_says_it_is(shell: SimpleNamespace, columns: str) -> None:
    ran = _program(shell, "conformance", "--endpoint", "http://127.0.0.1:1", COLUMNS=columns)
    assert ran.returncode == 2
    assert b"Running the cases on" in ran.stderr and b"Error: No engine answers" in ran.stderr


def test_a_folder_that_is_gone_is_told(shell: SimpleNamespace, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    leave = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.argv[1], sys.argv[1:])"
    words = ["model", "fetch", "smollm2-135m", "--engine-python", "python3"]
    ran = subprocess.run(
        [sys.executable, "-c", leave, *shell.argv, *words],
        env={**shell.env, "PATH": ""},
        cwd=gone,
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr.splitlines()[0]) == (
        2,
        "Error: The folder that this command was given in is gone.",
    )
