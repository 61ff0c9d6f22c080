"""Keeping a storage tier to a quota: what goes, what stays, and what an engine beside it sees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.hicache.tests.tier_files import NOW_S, page_hash, put, sglang_file, sglang_tier, vllm_tier
from rich.text import Text

from optistack.errors import InputError
from optistack_hicache.storage.collect import TURN_S, choose, collect
from optistack_hicache.storage.folder import open_folder
from optistack_hicache.storage.names import Holding
from optistack_hicache.storage.scan import Entry, Scan, scan, total_bytes
from optistack_hicache.storage.view import gc_view


def gc(folder: Path, *, max_bytes: int | None = None, max_age_s: float | None = None) -> int:
    with open_folder(folder) as opened:
        return len(collect(opened, choose(scan(opened), NOW_S, max_bytes=max_bytes, max_age_s=max_age_s)).entries)


def test_the_least_recently_used_go_first_on_both_engines(tmp_path: Path) -> None:
    first, second, third = sglang_tier(tmp_path)
    old, new = vllm_tier(tmp_path)
    assert gc(tmp_path, max_bytes=8192 + 4096) == 3
    assert [file.exists() for file in (first, second, third, old, new)] == [False, False, True, False, True]


def test_reading_keeps_a_file(tmp_path: Path) -> None:
    first, second, third = sglang_tier(tmp_path)
    os.utime(first, (NOW_S, first.stat().st_mtime))
    gc(tmp_path, max_bytes=4096)
    assert [file.exists() for file in (first, second, third)] == [True, False, False]


def test_age_counts_from_the_last_use(tmp_path: Path) -> None:
    first, second, third = sglang_tier(tmp_path)
    assert gc(tmp_path, max_age_s=2.5 * 86400) == 1
    assert [file.exists() for file in (first, second, third)] == [False, True, True]


def test_times_that_are_yet_to_come_are_counted_and_are_of_no_age(tmp_path: Path) -> None:
    file = put(sglang_file(tmp_path, 9), age_s=-86400.0)
    sglang_tier(tmp_path)
    with open_folder(tmp_path) as opened:
        done = collect(opened, choose(scan(opened), NOW_S, max_age_s=1))
    assert (len(done.entries), done.future) == (3, 1)
    assert file.exists()


def test_folders_that_are_emptied_go_too_and_the_engines_own_stays(tmp_path: Path) -> None:
    old, new = vllm_tier(tmp_path)
    beside = put(old.parent.parent / "ff_g0" / new.name)
    gc(tmp_path, max_age_s=1.5 * 86400)
    assert not old.parent.exists()
    assert beside.exists()
    assert new.exists()
    gc(tmp_path, max_bytes=0)
    assert [path.name for path in tmp_path.iterdir() if any(path.iterdir())] == ["_models_smollm2_abcdef012345"]
    assert (tmp_path / "_models_smollm2_abcdef012345_r0").is_dir()


def test_of_a_prefix_that_was_used_at_once_the_end_goes_first(tmp_path: Path) -> None:
    files = [put(sglang_file(tmp_path, number), age_s=50 - number / 100) for number in range(4)]
    gc(tmp_path, max_bytes=3 * 4096)
    assert [file.exists() for file in files] == [True, True, True, False]


def test_an_engine_that_reads_a_file_reads_it_to_its_end_and_the_next_one_misses(tmp_path: Path) -> None:
    first = sglang_tier(tmp_path)[0]
    with first.open("rb") as reader:
        gc(tmp_path, max_bytes=0)
        assert reader.read() == b"\x07" * 4096
    with pytest.raises(FileNotFoundError):
        first.open("rb")


def test_a_file_that_was_used_or_written_anew_meanwhile_stays(tmp_path: Path) -> None:
    used, replaced, gone, linked, idle = sglang_tier(tmp_path, [4096] * 5)
    with open_folder(tmp_path) as opened:
        chosen = choose(scan(opened), NOW_S, max_bytes=0)
        os.utime(used, (NOW_S, used.stat().st_mtime))
        put(tmp_path / "new").replace(replaced)
        gone.unlink()
        linked.unlink()
        linked.symlink_to(used)
        done = collect(opened, chosen)
    assert [entry.parts[-1] for entry in done.entries] == [idle.name]
    assert (done.busy, done.busy_bytes, done.gone) == (2, 8192, 2)
    assert (done.kept, done.kept_bytes) == (2, 8192)  # and so are in the total of what is there
    assert linked.is_symlink()
    assert used.exists()
    assert replaced.exists()


def test_removed_kept_and_gone_are_all_that_was_there(tmp_path: Path) -> None:
    files = sglang_tier(tmp_path, [1000, 2000, 3000, 4000])
    with open_folder(tmp_path) as opened:
        chosen = choose(scan(opened), NOW_S, max_bytes=4000)
        assert (chosen.kept, chosen.kept_bytes, chosen.busy) == (1, 4000, 0)
        os.utime(files[1], (NOW_S, files[1].stat().st_mtime))
        done = collect(opened, chosen)
    assert (len(done.entries), done.kept, done.gone) == (2, 2, 0)
    assert (done.freed_bytes, done.kept_bytes) == (4000, 6000)
    assert done.kept_bytes == sum(file.stat().st_size for file in files if file.exists())
    *_, kept, busy = (line.plain for line in gc_view(done, dry_run=False) if isinstance(line, Text))
    assert (kept, busy) == ("2 files kept, 5.86 KiB", "of those 1, 1.95 KiB, were used or replaced meanwhile")


def test_what_dead_writers_left_goes_and_what_live_ones_write_stays(tmp_path: Path) -> None:
    sglang_tier(tmp_path)
    dead = put(tmp_path / f".{'0f' * 16}.tmp", age_s=7200)
    live = put(tmp_path / f".{'1f' * 16}.tmp", age_s=10)
    gc(tmp_path, max_bytes=10**9)
    assert not dead.exists()
    assert live.exists()


def test_a_name_that_might_be_a_writers_makes_no_tier_of_a_folder(tmp_path: Path) -> None:
    note, other = put(tmp_path / "notes.txt"), put(tmp_path / f".{'0f' * 16}.tmp", age_s=7200)
    with pytest.raises(InputError, match="is no storage tier"):
        gc(tmp_path, max_bytes=0)
    assert note.exists()
    assert other.exists()


def test_nothing_but_kv_files_is_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    tier, outside = tmp_path / "tier", tmp_path / "outside"
    sglang_tier(tier)
    elsewhere = sglang_tier(outside)
    note = put(tier / "notes.txt")
    (tier / "link").symlink_to(outside)
    link = tier / sglang_file(tier, 99).name
    link.symlink_to(elsewhere[0])
    assert gc(tier, max_bytes=0) == 3
    assert all(file.exists() for file in elsewhere)
    assert note.exists()
    assert link.is_symlink()


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(tmp_path: Path) -> None:
    tier, outside = tmp_path / "tier", tmp_path / "outside"
    inside = sglang_tier(tier / "key", [4096])[0]
    victim = outside / inside.name
    outside.mkdir()
    with open_folder(tier) as opened:
        chosen = choose(scan(opened), NOW_S, max_bytes=0)
        inside.rename(victim)
        (tier / "key").rmdir()
        (tier / "key").symlink_to(outside)
        assert collect(opened, chosen).gone == 1
    assert victim.exists()


@pytest.mark.parametrize("make", ["missing", "file", "link", "strangers", "root"])
def test_what_is_no_tier_is_refused_in_one_sentence(tmp_path: Path, make: str) -> None:
    folder = tmp_path / "kv"
    if make == "file":
        folder.write_text("")
    elif make == "link":
        (tmp_path / "real").mkdir()
        folder.symlink_to(tmp_path / "real")
    elif make == "strangers":
        put(folder / "thesis.tex")
    elif make == "root":
        folder = Path("/")
    with pytest.raises(InputError) as caught, open_folder(folder) as opened:
        scan(opened)
    assert caught.value.message.count(".") <= 1 + caught.value.message.count("thesis.tex")
    assert caught.value.fix


def test_a_tree_of_strangers_is_given_up_early(tmp_path: Path) -> None:
    for number in range(2105):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(InputError, match="is no storage tier"), open_folder(tmp_path) as opened:
        scan(opened)


def test_an_empty_folder_is_an_empty_tier(tmp_path: Path) -> None:
    with open_folder(tmp_path) as opened:
        assert scan(opened) == Scan()


ENTRIES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=40).map(
    lambda rows: [
        Entry((page_hash(n),), Holding(".", "sglang", "m", ""), size, NOW_S - age, 0, n)
        for n, (size, age) in enumerate(rows)
    ]
)


@given(ENTRIES, st.integers(0, 10**7), st.one_of(st.none(), st.floats(0, 10**6)))
def test_a_quota_is_kept_and_nothing_is_given_up_without_need(
    entries: list[Entry], max_bytes: int, max_age_s: float | None
) -> None:
    chosen = choose(Scan(entries=entries), NOW_S, max_bytes=max_bytes, max_age_s=max_age_s)
    gone = {entry.name for entry in chosen.entries}
    kept = [entry for entry in entries if entry.name not in gone]
    assert chosen.kept_bytes == total_bytes(kept) <= max_bytes
    assert all(max_age_s is None or NOW_S - entry.used_s <= max_age_s for entry in kept)
    by_quota = [entry for entry in chosen.entries if max_age_s is None or NOW_S - entry.used_s <= max_age_s]
    if by_quota:  # the last one given up for the quota was needed
        assert chosen.kept_bytes + by_quota[-1].size_bytes > max_bytes
        assert all(entry.used_s > one.used_s - TURN_S for entry in kept for one in by_quota)
