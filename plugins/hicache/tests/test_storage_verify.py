"""Damage in a storage tier is found, and nothing else is taken for damage."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plugins.hicache.tests.tier_files import put, sglang_file, sglang_tier, vllm_tier

from optistack.errors import InputError
from optistack_hicache.storage import verify as verify_module
from optistack_hicache.storage.folder import Folder, open_folder
from optistack_hicache.storage.scan import HASHES_FILE, Entry
from optistack_hicache.storage.verify import Damage, Verified, verify


def check(folder: Path, **options: Any) -> Verified:
    with open_folder(folder) as opened:
        return verify(opened, **options)


def damages(folder: Path, **options: Any) -> dict[str, Damage]:
    return {bad.entry.parts[-1]: bad.damage for bad in check(folder, **options).bad}


def flip(file: Path, *, quietly: bool = True) -> None:
    """Change one bit in place, as a disk does it: without a time of writing."""
    before = file.stat()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    with file.open("r+b") as opened:
        opened.write(data)
    if quietly:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_files_that_are_too_short_too_long_or_empty_are_found_without_a_record(tmp_path: Path) -> None:
    short, long, empty, *good = sglang_tier(tmp_path, [4095, 8192, 0, 4096, 4096])
    assert damages(tmp_path) == {short.name: Damage.SHORT, long.name: Damage.LONG, empty.name: Damage.EMPTY}
    assert check(tmp_path).files == 3 + len(good)


def test_each_rank_pool_and_group_has_a_size_of_its_own(tmp_path: Path) -> None:
    sglang_tier(tmp_path / "key", [4096] * 3)
    sglang_tier(tmp_path / "key", [128] * 3, pool=".draft")
    sglang_tier(tmp_path / "key", [2048] * 3, rank="_1_2")
    vllm_tier(tmp_path / "other", [8192] * 2)
    assert damages(tmp_path) == {}


def test_the_size_can_be_given_where_most_files_are_wrong(tmp_path: Path) -> None:
    *bad, good = sglang_tier(tmp_path, [100, 100, 4096])
    assert damages(tmp_path) == {good.name: Damage.LONG}
    assert damages(tmp_path, page_bytes=4096) == {file.name: Damage.SHORT for file in bad}
    with pytest.raises(InputError, match="2 of 3 files have another size"):
        check(tmp_path, page_bytes=4096, remove_bad=True)
    assert all(file.exists() for file in bad)
    vllm_tier(tmp_path)
    with pytest.raises(InputError, match="--page-bytes is one size"):
        check(tmp_path, page_bytes=4096)


@pytest.mark.parametrize("remove_bad", [False, True])
def test_a_size_that_no_file_has_is_refused(tmp_path: Path, remove_bad: bool) -> None:
    files = sglang_tier(tmp_path)
    with pytest.raises(InputError, match=r"No file here has 1 bytes; most have 4,096\."):
        check(tmp_path, page_bytes=1, remove_bad=remove_bad)
    assert all(file.exists() for file in files)


def test_a_given_size_removes_the_few_that_differ(tmp_path: Path) -> None:
    sglang_tier(tmp_path, [4096, 4096, 100])
    assert check(tmp_path, page_bytes=4096, remove_bad=True).removed == 1


def test_a_tie_is_said_to_be_a_guess(tmp_path: Path) -> None:
    sglang_tier(tmp_path, [100, 4096])
    assert len(check(tmp_path).guessed) == 1


def test_a_flipped_bit_is_found_once_the_file_was_recorded(tmp_path: Path) -> None:
    files = sglang_tier(tmp_path)
    assert check(tmp_path, record=True).recorded == 3
    flip(files[1])
    assert damages(tmp_path) == {files[1].name: Damage.BYTES}
    assert damages(tmp_path, sizes_only=True) == {}


def test_without_a_record_a_flipped_bit_is_not_seen_and_not_said_to_be_checked(tmp_path: Path) -> None:
    flip(sglang_tier(tmp_path)[1])
    result = check(tmp_path)
    assert (result.bad, result.hashed) == ([], 0)


def test_writing_into_a_file_in_place_is_found_too(tmp_path: Path) -> None:
    files = sglang_tier(tmp_path)
    check(tmp_path, record=True)
    flip(files[0], quietly=False)
    assert damages(tmp_path) == {files[0].name: Damage.CHANGED}


def test_a_file_that_the_engine_wrote_anew_is_recorded_anew(tmp_path: Path) -> None:
    files = sglang_tier(tmp_path)
    check(tmp_path, record=True)
    put(tmp_path / "new", fill=9).replace(files[0])
    assert damages(tmp_path) == {}
    again = check(tmp_path, record=True)
    assert (again.recorded, again.hashed) == (1, 2)
    flip(files[0])
    assert damages(tmp_path) == {files[0].name: Damage.BYTES}


def test_a_damaged_file_stays_damaged_when_it_is_recorded_again(tmp_path: Path) -> None:
    files = sglang_tier(tmp_path)
    check(tmp_path, record=True)
    flip(files[0])
    assert damages(tmp_path, record=True) == {files[0].name: Damage.BYTES}
    assert damages(tmp_path) == {files[0].name: Damage.BYTES}


def test_removed_files_are_misses_and_good_ones_stay(tmp_path: Path) -> None:
    files = sglang_tier(tmp_path, [4096] * 3 + [17])
    check(tmp_path, record=True)
    flip(files[0])
    result = check(tmp_path, remove_bad=True)
    assert (len(result.bad), result.removed) == (2, 2)
    assert [file.exists() for file in files] == [False, True, True, False]
    assert check(tmp_path).bad == []


def test_checking_does_not_count_as_use(tmp_path: Path) -> None:
    file = sglang_tier(tmp_path)[0]
    before = file.stat().st_atime_ns
    check(tmp_path, record=True)
    assert file.stat().st_atime_ns == before


def test_an_error_of_something_else_is_no_error_of_the_record(tmp_path: Path) -> None:
    sglang_tier(tmp_path)

    def closed(_: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        check(tmp_path, record=True, progress=closed)


def test_records_of_files_that_are_gone_are_dropped(tmp_path: Path) -> None:
    files = sglang_tier(tmp_path)
    check(tmp_path, record=True)
    files[0].unlink()
    check(tmp_path, record=True)
    assert files[0].name not in (tmp_path / HASHES_FILE).read_text()


@pytest.mark.parametrize(
    "line", [b"{}", b'["a", 1]', b"no json", b"5", b'["a", "1", 2, "x"]', b"[[], 1, 2, 3]", b"\xff", b"", b"[" * 9999]
)
def test_broken_lines_are_counted_and_the_others_are_used(tmp_path: Path, line: bytes) -> None:
    files = sglang_tier(tmp_path)
    check(tmp_path, record=True)
    flip(files[0])
    record = tmp_path / HASHES_FILE
    first, *rest = record.read_bytes().splitlines()
    record.write_bytes(b"\n".join([first, line, *rest, line, b""]))
    result = check(tmp_path)
    assert (result.broken, result.hashed, result.torn) == ([2, 5], 3, False)
    assert [bad.damage for bad in result.bad] == [Damage.BYTES]
    check(tmp_path, record=True)
    assert check(tmp_path).broken == []


@pytest.mark.parametrize("cut", [1, 40, 100])
def test_a_last_line_that_was_cut_off_costs_one_record(tmp_path: Path, cut: int) -> None:
    files = sglang_tier(tmp_path)
    check(tmp_path, record=True)
    record = tmp_path / HASHES_FILE
    os.truncate(record, record.stat().st_size - cut)
    flip(files[0])
    lost = 0 if cut == 1 else 1  # a line without its end is whole
    result = check(tmp_path)
    assert (result.torn, result.hashed) == (cut > 1, 3 - lost)
    again = check(tmp_path, record=True)
    assert (again.recorded, again.hashed) == (lost, 3 - lost)
    assert not check(tmp_path).torn


def test_a_record_that_is_killed_keeps_what_it_had_and_the_next_one_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sglang_tier(tmp_path, [4096] * 5)
    real, hashed = verify_module.sha256_of, []

    def killed(folder: Folder, entry: Entry) -> str:
        if len(hashed) == 2:
            raise KeyboardInterrupt
        hashed.append(entry.name)
        return real(folder, entry)

    monkeypatch.setattr(verify_module, "sha256_of", killed)
    with pytest.raises(KeyboardInterrupt):
        check(tmp_path, record=True)
    first = set(hashed)
    assert {json.loads(line)[0] for line in (tmp_path / HASHES_FILE).read_text().splitlines()} == first
    hashed.clear()
    with pytest.raises(KeyboardInterrupt):
        check(tmp_path, record=True)
    assert first.isdisjoint(hashed)
    monkeypatch.undo()
    result = check(tmp_path, record=True)
    assert (result.recorded, result.hashed) == (1, 4)


@pytest.mark.parametrize("options", [{}, {"remove_bad": True}, {"record": True}, {"record": True, "remove_bad": True}])
def test_files_that_this_user_may_not_read_are_counted_and_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]
) -> None:
    first, *_ = sglang_tier(tmp_path)
    real = Folder.open

    def locked(folder: Folder, parts: tuple[str, ...], *more: int) -> int:
        if parts[-1] == first.name:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(folder, parts, *more)

    monkeypatch.setattr(Folder, "open", locked)
    assert damages(tmp_path, **options) == {first.name: Damage.FORBIDDEN}
    assert first.exists()


def test_records_through_a_link_are_neither_read_nor_written(tmp_path: Path) -> None:
    tier, victim = tmp_path / "tier", tmp_path / "victim"
    sglang_tier(tier)
    victim.write_text("precious")
    (tier / HASHES_FILE).symlink_to(victim)
    with pytest.raises(InputError, match="cannot be read"):
        check(tier, record=True)
    assert victim.read_text() == "precious"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), files=st.integers(3, 9), size=st.integers(2, 3000))
def test_every_damage_is_found_and_only_that(tmp_path_factory: Any, seed: int, files: int, size: int) -> None:
    folder, chance = tmp_path_factory.mktemp("tier"), random.Random(seed)
    made = [put(sglang_file(folder, number), size, fill=number) for number in range(files)]
    check(folder, record=True)
    victims = chance.sample(made, k=chance.randint(0, (files - 1) // 2))
    for victim in victims:
        chance.choice([flip, lambda file: os.truncate(file, size - 1), lambda file: os.truncate(file, size + 1)])(
            victim
        )
    assert set(damages(folder)) == {victim.name for victim in victims}
