"""A lock file gives back the very plan, and nothing but the plan it was made from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from optistack.errors import InputError
from optistack.host import Host
from optistack.plan.lock import check_checkpoint, check_plugins, read_lock, write_lock
from optistack.plan.plan import Plan, PluginUse

MakePlan = Callable[..., Plan]


def test_what_is_read_is_what_was_written(make_plan: MakePlan, tmp_path: Path) -> None:
    plan, path = make_plan(), tmp_path / "optistack.lock.json"
    write_lock(plan, path)
    again = read_lock(path)
    assert again.hash() == plan.hash()
    assert again.stack.get("kv.page_size_tokens") == plan.stack.get("kv.page_size_tokens")
    assert [entry.name for entry in tmp_path.iterdir()] == ["optistack.lock.json"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda lock: lock["plan"]["launches"][0]["arguments"].pop(), "no longer has the hash"),
        (lambda lock: lock["plan"].update(model=None), "was edited: model is not what a plan has there"),
        (lambda lock: lock["plan"].update(extra=1), "was edited: extra"),
        (lambda lock: lock["plan"].update(optistack_version="0.0.1"), "was made by optistack 0.0.1"),
        (lambda lock: lock.update(optistack_lock=99), "is not a lock file of this optistack"),
        (lambda lock: lock.pop("plan"), "is not a lock file of this optistack"),
    ],
)
def test_an_edited_or_foreign_lock_is_refused(
    make_plan: MakePlan, tmp_path: Path, edit: Callable[[dict[str, object]], object], message: str
) -> None:
    path = tmp_path / "a.json"
    write_lock(make_plan(), path)
    lock = json.loads(path.read_text())
    edit(lock)
    path.write_text(json.dumps(lock))
    with pytest.raises(InputError, match=message) as caught:
        read_lock(path)
    assert "optistack plan --lock" in caught.value.fix


@pytest.mark.parametrize("text", ["", "{", "[1]", "nothing"])
def test_other_files_are_no_lock(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match="is not a lock file"):
        read_lock(path)
    with pytest.raises(InputError, match="There is no lock file"):
        read_lock(tmp_path / "b.json")


def test_a_folder_that_cannot_be_written_leaves_nothing(make_plan: MakePlan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_lock(make_plan(), tmp_path / "no" / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_another_checkpoint_is_refused_with_what_differs(make_plan: MakePlan, tmp_path: Path) -> None:
    plan, path = make_plan(), tmp_path / "a.json"
    check_checkpoint(plan, plan.model, path)
    with pytest.raises(InputError, match="another checkpoint than nvidia/Kimi-K2.6-NVFP4: its config or its tensors"):
        check_checkpoint(plan, plan.model.model_copy(update={"fingerprint": "0"}), path)


def test_a_lock_planned_from_a_config_is_held_against_shape_and_precision(make_plan: MakePlan, tmp_path: Path) -> None:
    plan, path = make_plan(), tmp_path / "a.json"
    real = plan.model.model_copy(update={"evidence": "headers", "fingerprint": "1"})
    check_checkpoint(plan, real, path)
    with pytest.raises(InputError, match="its layers differs"):
        check_checkpoint(plan, real.model_copy(update={"layers": 60}), path)
    parts = tuple(part.model_copy(update={"precision": "bf16"}) for part in real.components)
    with pytest.raises(InputError, match="its routed experts are bf16, not nvfp4"):
        check_checkpoint(plan, real.model_copy(update={"components": parts}), path)


def test_all_plugins_that_are_missing_are_told_together(make_plan: MakePlan, tmp_path: Path) -> None:
    uses = tuple(PluginUse(name=name, version="0.1.0", options={}) for name in ("one", "two"))
    with pytest.raises(InputError, match="plugins that are not here: one, two") as caught:
        check_plugins(make_plan(plugins=uses), Host(), tmp_path / "a.json")
    assert "optistack-one==0.1.0, optistack-two==0.1.0" in caught.value.fix
