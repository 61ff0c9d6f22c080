"""A damaged checkpoint is named, with what to do, before anything is started."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack.facts import load_model
from optistack.facts.safetensors import read_shard


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_model(str(folder))
    assert caught.value.fix
    return caught.value.message


@pytest.fixture
def folder(write_folder: Any, made: Any) -> Path:
    made_folder: Path = write_folder(made.llama_config(), made.llama_tensors())
    return made_folder


def test_file_cut_inside_its_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    assert f"{file} ends inside its header: 100 bytes" in refused(folder)


def test_file_of_a_few_bytes(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x01\x02")
    assert "2 bytes long, too short" in refused(folder)


def test_header_longer_than_the_file(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 50_000) + b"{}")
    assert "50008 needed" in refused(folder)


def test_header_length_beyond_all_reason(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    assert "is not a safetensors file" in refused(folder)


def test_data_cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    assert "is cut off: tensor 'model.layers.1.mlp.down_proj.weight' ends 10 bytes after the file" in refused(folder)


def test_git_lfs_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(InputError, match="git lfs pull"):
        load_model(str(folder))


def test_header_that_is_not_json(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 8) + b"not json")
    assert "header of" in refused(folder)


def test_tensor_whose_bytes_do_not_match_its_shape(folder: Path) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [4, 4], "data_offsets": [0, 16]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    assert "gives tensor 'w' 16 bytes, but BF16 [4, 4] takes 32" in refused(folder)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "BF16", "shape": [2]},
        {"dtype": "BF16", "shape": [2], "data_offsets": [4, 0]},
        {"dtype": "BF16", "shape": [-2], "data_offsets": [0, 4]},
        {"dtype": "BF16", "shape": "two", "data_offsets": [0, 4]},
        {"dtype": "BF16", "shape": [2], "data_offsets": [0]},
        ["BF16"],
    ],
)
def test_tensor_described_wrongly(folder: Path, entry: Any) -> None:
    header = json.dumps({"w": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert "describes tensor 'w' wrongly" in refused(folder)


def test_index_that_names_a_missing_file(write_folder: Any, made: Any) -> None:
    tensors = made.llama_tensors()
    names = list(tensors)
    halves = [{name: tensors[name] for name in part} for part in (names[:5], names[5:])]
    folder = write_folder(made.llama_config(), *halves)
    assert load_model(str(folder)).evidence == "headers"
    (folder / "model-00002-of-00002.safetensors").unlink()
    message = refused(folder)
    assert "names model-00002-of-00002.safetensors" in message
    assert "1 of 2 missing" in message


def test_index_that_names_a_tensor_no_file_has(write_folder: Any, made: Any) -> None:
    tensors = made.llama_tensors()
    names = list(tensors)
    folder = write_folder(made.llama_config(), *({n: tensors[n] for n in part} for part in (names[:5], names[5:])))
    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    index["weight_map"]["model.extra.weight"] = "model-00001-of-00002.safetensors"
    index_file.write_text(json.dumps(index))
    assert "names tensor 'model.extra.weight', which no file has" in refused(folder)


def test_index_that_is_no_index(write_folder: Any, made: Any) -> None:
    folder = write_folder(made.llama_config(), made.llama_tensors())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    assert "is no index" in refused(folder)


@given(junk=st.binary(max_size=300))
def test_no_junk_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    file = tmp_path_factory.mktemp("junk") / "model.safetensors"
    file.write_bytes(junk)
    with pytest.raises(InputError):
        read_shard(file)


@given(cut=st.integers(min_value=0, max_value=1200))
def test_every_cut_is_noticed(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    header = json.dumps(
        {f"w{i}": {"dtype": "U8", "shape": [64], "data_offsets": [64 * i, 64 * i + 64]} for i in range(9)}
    )
    whole = struct.pack("<Q", len(header)) + header.encode() + bytes(64 * 9)
    file = tmp_path_factory.mktemp("cut") / "model.safetensors"
    file.write_bytes(whole[:cut])
    if cut < len(whole):
        with pytest.raises(InputError):
            read_shard(file)
    else:
        assert len(read_shard(file).tensors) == 9
