"""What the names of files and folders say. The names are those that the engines' own code gave when it was run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack_hicache.storage.names import holding, leftover, read_key, vllm_config
from optistack_hicache.storage.units import age_word, bytes_word, parse_age_s, parse_bytes

HASH = "0b" * 32


@pytest.mark.parametrize(
    ("name", "model", "part"),
    [
        (f"{HASH}_-models-kimi.bin", "-models-kimi", ""),
        (f"{HASH}_moonshotai-Kimi-K2.6_0_4.bin", "moonshotai-Kimi-K2.6", "0_4"),
        (f"{HASH}.draft_llama_3_8.bin", "llama", "draft 3_8"),
        (f"{HASH}.mamba_qwen_next_1_2_2_0.bin", "qwen_next", "mamba 1_2_2_0"),
        (f"{HASH}_glm_0_8_cp1_4.bin", "glm", "0_8_cp1_4"),
        (f"{HASH}_kimi_tp8_dcp1_2_page128.bin", "kimi", "tp8_dcp1_2_page128"),
    ],
)
def test_sglangs_files_say_the_model_and_the_rank(name: str, model: str, part: str) -> None:
    found = holding(("kv", name))
    assert found is not None
    assert (found.place, found.engine, found.model, found.part) == ("kv", "sglang", model, part)


def test_vllms_files_say_the_model_the_digest_and_the_group() -> None:
    found = holding(("kv", "org_llama_abcdef012345_r3", HASH[:3], f"{HASH[3:5]}_g1", f"{HASH}.bin"))
    assert found is not None
    assert (found.place, found.engine, found.model, found.part) == ("kv", "vllm", "org_llama", "abcdef012345 r3 g1")
    assert vllm_config(("kv", "org_llama_abcdef012345", "config.json")) == "abcdef012345"


@pytest.mark.parametrize(
    "parts",
    [
        ("notes.txt",),
        (f"{HASH}.bin",),
        (f"{HASH[:40]}_model_0_1.bin",),
        (f"{HASH}_model_0_1.safetensors",),
        ("a", "b", "c_g0", f"{HASH}.bin"),
        ("config.json",),
        ("model-00001-of-00002.bin",),
    ],
)
def test_files_of_other_kinds_are_nobodys(parts: tuple[str, ...]) -> None:
    assert holding(parts) is None
    assert vllm_config(parts) is None


@pytest.mark.parametrize(
    "name",
    [
        f".{'0f' * 16}.tmp",
        f"{HASH}_model_0_1.bin.tmp.31.140000.{'0f' * 16}",
        f"{HASH}.bin_8123456.tmp",
        ".o_direct_probe_17.tmp",
    ],
)
def test_temporary_files_of_each_version_are_known(name: str) -> None:
    assert leftover(name)
    assert holding((name,)) is None


@pytest.mark.parametrize("name", ["upload.tmp", ".cache.tmp", f"{HASH}_model_0_1.bin", "tmp"])
def test_other_temporary_files_are_not(name: str) -> None:
    assert not leftover(name)


def test_the_key_is_read_from_the_folder_that_the_plugin_names(bench: Any) -> None:
    name = str(bench.resolve(storage="file", storage_dir="/ssd").tier(3).key.value)
    key = read_key(name)
    assert key is not None
    assert (key.model, key.dtype, key.page, key.layout) == ("target", "fp8_e4m3", "auto", "page_first")
    assert (key.tensor, key.engine, key.version) == (4, "sglang", "0.5.23")
    assert name.endswith(key.digest)


@pytest.mark.parametrize("name", ["kv", "kimi-fp8-tp4", "target-fp8_e4m3-tp4-sglang0.5.23-0123456789ab"])
def test_other_folders_have_no_key(name: str) -> None:
    assert read_key(name) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("400GiB", 400 * 2**30), ("1.5 GB", 1_500_000_000), ("2k", 2000), ("17", 17), ("3TiB", 3 * 2**40)],
)
def test_sizes_are_decimal_but_for_the_i(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1G", "1X", "G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["1.5", "400.0", "1.5B"])
def test_a_part_of_a_byte_is_a_forgotten_unit(text: str) -> None:
    with pytest.raises(InputError, match="has no unit"):
        parse_bytes(text)


def test_ages() -> None:
    assert (parse_age_s("30m"), parse_age_s("2w")) == (1800, 1_209_600)
    with pytest.raises(InputError, match="is no age"):
        parse_age_s("7")


@given(st.integers(0, 2**60))
def test_a_size_in_words_is_within_a_percent_of_itself(size: int) -> None:
    assert abs(parse_bytes(bytes_word(size)) - size) <= size / 100


@given(st.integers(1, 10**9))
def test_an_age_in_words_is_within_half_of_its_unit(age_s: int) -> None:
    unit = parse_age_s(f"1{age_word(age_s)[-1]}")
    assert abs(parse_age_s(age_word(age_s)) - age_s) <= unit / 2
