"""``optistack hicache``: what it prints, its exit codes, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plugins.hicache.tests.tier_files import KEY, put, sglang_file, sglang_tier, vllm_tier

from optistack.cli.run import run
from optistack_hicache.storage.hashes import Records
from optistack_hicache.storage.scan import HASHES_FILE

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hicache(capsys: pytest.CaptureFixture[str]) -> Command:
    def command(*words: str | Path) -> tuple[int, str, str]:
        code = run(["hicache", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def as_json(command: Command, *words: str | Path) -> Any:
    code, out, _ = command(*words, "--json")
    assert code == 0
    return json.loads(out)


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """A storage_dir with a folder that the plugin named, and one of vLLM's without."""
    folder = tmp_path / "kv"
    sglang_tier(folder / KEY)
    vllm_tier(folder / "by-hand")
    return folder


def test_ls_says_whose_kv_it_is(hicache: Command, tier: Path) -> None:
    vllm, sglang = as_json(hicache, "ls", tier)["holdings"]
    assert (sglang["model"], sglang["dtype"], sglang["page"]) == ("smollm2-135m", "bfloat16", "64")
    assert (sglang["layout"], sglang["engine"], sglang["version"]) == ("page_first", "sglang", "0.5.23")
    assert (sglang["key"], sglang["files"], sglang["bytes"]) == ("0123456789ab", 3, 12288)
    assert (vllm["place"], vllm["engine"], vllm["dtype"], vllm["page"]) == ("by-hand", "vllm", "bfloat16", "32")
    assert (vllm["layout"], vllm["key"]) == (None, None)


def test_ls_of_a_keys_own_folder_knows_the_key(hicache: Command, tier: Path) -> None:
    (line,) = as_json(hicache, "ls", tier / KEY)["holdings"]
    assert (line["place"], line["key"]) == (".", "0123456789ab")


def test_ls_warns_of_mixtures_models_that_share_and_strangers(hicache: Command, tier: Path) -> None:
    put(sglang_file(tier / KEY, 17), 99)
    put(sglang_file(tier / KEY, 17, model="another"))
    put(tier / "readme.txt")
    _, out, _ = hicache("ls", tier)
    assert "differ in size" in out
    assert "shared by -models-smollm2, another" in out
    assert "1 files of other kinds, such as readme.txt" in out


def test_du_counts_folders_largest_first(hicache: Command, tier: Path) -> None:
    sizes = as_json(hicache, "du", tier)
    assert [(one["folder"], one["bytes"]) for one in sizes["folders"]] == [("by-hand", 16384), (KEY, 12288)]
    _, out, _ = hicache("du", tier)
    assert out.splitlines()[-1].split() == ["28.00", "KiB", "5", "in", "all"]


def test_gc_tells_first_and_removes_then(hicache: Command, tier: Path) -> None:
    first = as_json(hicache, "gc", tier, "--max-bytes", "20KiB", "--dry-run")
    assert (first["removed"], first["kept_bytes"]) == (2, 16384)
    assert as_json(hicache, "du", tier)["files"] == 5
    then = as_json(hicache, "gc", tier, "--max-bytes", "20KiB")
    assert {**first, "dry_run": False} == then
    assert as_json(hicache, "du", tier)["bytes"] == 16384


def test_gc_notes_times_that_are_yet_to_come(hicache: Command, tier: Path) -> None:
    _, out, error = hicache("gc", tier, "--max-age", "1h")
    assert "0 files removed" in out
    assert "5 files have times that are yet to come" in error
    assert "yet to come" not in hicache("gc", tier, "--max-bytes", "1GiB")[2]


def test_gc_in_words(hicache: Command, tier: Path) -> None:
    code, out, _ = hicache("gc", tier, "--max-bytes", "0")
    assert (code, out.splitlines()) == (0, ["5 files removed, 28.00 KiB", "0 files kept, 0 B"])


@pytest.mark.parametrize("size", ["1.5", "1", "400", "8191"])
def test_gc_takes_a_quota_below_one_file_for_a_forgotten_unit(hicache: Command, tier: Path, size: str) -> None:
    code, out, error = hicache("gc", tier, "--max-bytes", size)
    assert (code, out) == (2, "")
    assert "GiB" in error
    assert as_json(hicache, "du", tier)["files"] == 5


def test_gc_takes_bytes_without_a_unit(hicache: Command, tier: Path) -> None:
    assert as_json(hicache, "gc", tier, "--max-bytes", "20480")["kept_bytes"] == 16384


def test_verify_fails_while_damage_stays(hicache: Command, tier: Path) -> None:
    put(sglang_file(tier / KEY, 17), 99)
    code, out, error = hicache("verify", tier)
    assert code == 1
    assert "short: 99 bytes instead of 4,096" in out
    assert "1 file in" in error
    assert "--remove" in error
    code, out, _ = hicache("verify", tier, "--remove", "--json")
    assert (code, json.loads(out)["removed"]) == (0, 1)
    assert hicache("verify", tier)[0] == 0


@pytest.mark.parametrize("words", [(), ("--remove",)])
def test_verify_fails_for_files_that_it_may_not_read(
    hicache: Command, tier: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def locked(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr("optistack_hicache.storage.folder.Folder.open", locked)
    monkeypatch.setattr("optistack_hicache.storage.verify.read_records", lambda _: Records())
    code, out, error = hicache("verify", tier, *words)
    assert code == 1
    assert "this user may not read it" in out
    assert "0 damaged, 5 that this user may not read" in out
    assert "may not be read." in error
    assert as_json(hicache, "du", tier)["files"] == 5


def test_verify_names_broken_lines_of_the_record_and_fails(hicache: Command, tier: Path) -> None:
    assert hicache("verify", tier, "--record")[0] == 0
    record = tier / HASHES_FILE
    lines = record.read_text().splitlines()
    record.write_text("\n".join([*lines[:2], lines[2][:30], *lines[3:]]) + "\n")
    code, out, error = hicache("verify", tier)
    assert code == 1
    assert "0 damaged, 4 compared with their hash" in out
    assert f"Line 3 of {record} cannot be read" in error
    assert json.loads(hicache("verify", tier, "--json")[1])["broken_record_lines"] == [3]
    code, out, error = hicache("verify", tier, "--record")
    assert (code, "1 recorded" in out, "were recorded anew" in error) == (1, True, True)
    assert hicache("verify", tier)[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("gc",), "gc is given no quota."),
        (("gc", "--max-bytes", "plenty"), "'plenty' is no size."),
        (("gc", "--max-age", "old"), "'old' is no age."),
        (("verify", "--record", "--sizes-only"), "--record reads every file and --sizes-only reads none."),
    ],
)
def test_nonsense_is_one_sentence(hicache: Command, tier: Path, words: tuple[str, ...], sentence: str) -> None:
    code, _, error = hicache(words[0], tier, *words[1:])
    assert code == 2
    assert sentence in error
    assert "Traceback" not in error


@pytest.mark.parametrize("words", [("ls",), ("du",), ("gc", "--max-bytes", "0"), ("verify",)])
def test_a_folder_of_somebody_else_is_refused_and_left_alone(
    hicache: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    thesis = put(tmp_path / "thesis.tex")
    code, _, error = hicache(words[0], tmp_path, *words[1:])
    assert code == 2
    assert "is no storage tier" in error
    assert thesis.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_folder_of_another_user_is_one_sentence(hicache: Command, tier: Path) -> None:
    (tier / KEY).chmod(0o500)
    try:
        code, _, error = hicache("gc", tier, "--max-bytes", "0")
    finally:
        (tier / KEY).chmod(0o700)
    assert code == 2
    assert "may not be removed" in error
