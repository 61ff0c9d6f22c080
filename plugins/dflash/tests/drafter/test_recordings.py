"""What the router's tap kept becomes shards like those of collect, of one target and apart by sampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optistack.errors import InputError
from optistack_dflash.drafter.recordings import convert_recordings
from optistack_dflash.drafter.shard_files import shards_in
from optistack_dflash.drafter.shards import read_folder, read_shard


def record(folder: Path, *lines: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    whole = [{"model": "m", "sampling": {}, "prompt": [1, 2], "answer": [3, 4, 5], **line} for line in lines]
    (folder / "tap-1-00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in whole))
    return folder


def test_shards_are_of_one_way_of_sampling_each(target: Any, checkpoint: Path, tmp_path: Path) -> None:
    taken = record(tmp_path / "tap", {}, {"sampling": {"temperature": 0}}, {"answer": [7, 8]})
    found = convert_recordings(taken, checkpoint, tmp_path / "out", domain="chat")
    assert (found.shards, found.sequences, found.tokens) == (2, 3, 8)
    sequences = read_folder(tmp_path / "out", revision=target.revision, template=target.template, target=target.name)
    assert {(one.ids, one.prompt_tokens, one.domain) for one in sequences} == {
        ((1, 2, 3, 4, 5), 2, "chat"),
        ((1, 2, 7, 8), 2, "chat"),
    }
    assert sorted(read_shard(path)[0].sampling for path in shards_in(tmp_path / "out")) == [
        (),
        (("temperature", 0),),
    ]


def test_recordings_of_several_models_need_a_name(checkpoint: Path, tmp_path: Path) -> None:
    taken = record(tmp_path / "tap", {}, {"model": "other"})
    with pytest.raises(InputError, match="of the models m, other"):
        convert_recordings(taken, checkpoint, tmp_path / "out")
    assert convert_recordings(taken, checkpoint, tmp_path / "out", model="other").sequences == 1
    with pytest.raises(InputError, match="holds shards already"):
        convert_recordings(taken, checkpoint, tmp_path / "out", model="other")


@pytest.mark.parametrize(
    ("line", "says"),
    [({"answer": [64]}, "has the token 64.*vocabulary has 64"), ({"answer": "text"}, "is no recording")],
)
def test_recordings_of_another_target_are_refused(
    checkpoint: Path, tmp_path: Path, line: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=f"Line 2 of .*{says}"):
        convert_recordings(record(tmp_path / "tap", {}, line), checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_is_told(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no recordings"):
        convert_recordings(tmp_path, checkpoint, tmp_path / "out")
