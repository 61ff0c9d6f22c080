"""Relative paths start where they were written; hub ids are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from optistack.errors import InputError
from optistack.host import Host
from optistack.stack.loader import load_stack
from optistack.stack.overrides import Overrides
from optistack.stack.references import resolve_checkpoint, resolve_path, resolve_python

Write = Callable[[str], Path]


def test_paths_of_the_file_start_at_its_folder_and_typed_ones_here(
    write: Write, host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write(
        "model: {checkpoint: ./m, config: models/kimi}\n"
        "plugins:\n  kv-eight: {scales_file: s.json}\n  drafter: {checkpoint: o/d}\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    spec = load_stack(path, host, Overrides(settings=("drafter.checkpoint=./d",)))
    assert spec.model.checkpoint == str(tmp_path / "m")
    assert spec.model.config == str(tmp_path / "models/kimi")
    assert spec.plugins["kv-eight"]["scales_file"] == str(tmp_path / "s.json")
    assert spec.plugins["drafter"]["checkpoint"] == str(elsewhere / "d")


def test_a_checkpoint_is_a_folder_where_there_is_one_and_a_hub_id_otherwise(tmp_path: Path) -> None:
    assert resolve_checkpoint("org/name", tmp_path) == "org/name"
    (tmp_path / "org/name").mkdir(parents=True)
    assert resolve_checkpoint("org/name", tmp_path) == str(tmp_path / "org/name")
    assert resolve_checkpoint("../x", tmp_path / "a") == str(tmp_path / "x")
    assert resolve_checkpoint("/x/y", tmp_path) == "/x/y"


def test_variables_home_and_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELS", "/srv/models")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NOT_SET", raising=False)
    assert resolve_checkpoint("$MODELS/kimi", tmp_path) == "/srv/models/kimi"
    assert resolve_path("${MODELS}/kimi/../x", tmp_path) == "/srv/models/x"
    assert resolve_checkpoint("~/m", tmp_path) == "/home/someone/m"
    made = tmp_path / "optistack/models/smollm2-135m"
    with pytest.raises(InputError, match="'cache:nope' has not been made here yet") as other:
        resolve_checkpoint("cache:nope", tmp_path)
    assert "makes smollm2-135m and" in other.value.fix
    assert "folder or hub id" in other.value.fix
    with pytest.raises(InputError, match="has not been made here yet") as caught:
        resolve_checkpoint("cache:smollm2-135m", tmp_path)
    assert "optistack model fetch smollm2-135m" in caught.value.fix
    made.mkdir(parents=True)
    assert resolve_checkpoint("cache:smollm2-135m", tmp_path) == str(made)
    with pytest.raises(InputError, match="NOT_SET, which is not set"):
        resolve_checkpoint("$NOT_SET/kimi", tmp_path)
    with pytest.raises(InputError, match="names no model"):
        resolve_checkpoint("cache:../../etc", tmp_path)


def test_a_python_is_a_path_or_a_program_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "engine-python"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert resolve_python("engine-python", tmp_path) == str(program)
    assert resolve_python("venv/bin/python", tmp_path) == str(tmp_path / "venv/bin/python")
    assert resolve_python("no-such-python", tmp_path) == str(tmp_path / "no-such-python")
