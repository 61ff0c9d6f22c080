"""A trained drafter is a checkpoint that engines load unchanged: names, shapes, dtype, config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from optistack.errors import InputError
from optistack.facts import load_model
from optistack_dflash.draft import check_fit, read_draft
from optistack_dflash.drafter.network import Drafter, load_drafter, save_drafter
from optistack_dflash.drafter.shape import DrafterShape, spread


def of_layer(number: int, hidden: int, q: int, kv: int, mlp: int, head: int) -> dict[str, list[int]]:
    at = f"layers.{number}."
    return {
        f"{at}input_layernorm.weight": [hidden],
        f"{at}post_attention_layernorm.weight": [hidden],
        f"{at}self_attn.q_proj.weight": [q, hidden],
        f"{at}self_attn.k_proj.weight": [kv, hidden],
        f"{at}self_attn.v_proj.weight": [kv, hidden],
        f"{at}self_attn.o_proj.weight": [hidden, q],
        f"{at}self_attn.q_norm.weight": [head],
        f"{at}self_attn.k_norm.weight": [head],
        f"{at}mlp.gate_proj.weight": [mlp, hidden],
        f"{at}mlp.up_proj.weight": [mlp, hidden],
        f"{at}mlp.down_proj.weight": [hidden, mlp],
    }


def test_the_tensors_are_those_of_vllms_loader(shape: DrafterShape, tmp_path: Path) -> None:
    """DFlashQwen3Model.load_weights (vllm 0.26 and 0.32 model_executor/models/qwen3_dflash.py) puts ``model.`` before
    each name, joins q, k, v and gate, up, and takes neither embedding nor head from a draft."""
    save_drafter(Drafter(shape), tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118  # no mapping
        dtypes = {file.get_slice(name).get_dtype() for name in found}
    expected = {"fc.weight": [32, 64], "hidden_norm.weight": [32], "norm.weight": [32]}
    for number in range(2):
        expected |= of_layer(number, hidden=32, q=32, kv=16, mlp=64, head=8)
    assert found == expected
    assert dtypes == {"BF16"}


def test_the_config_is_read_back_and_fits_the_target(shape: DrafterShape, checkpoint: Path, tmp_path: Path) -> None:
    save_drafter(Drafter(shape), tmp_path)
    assert DrafterShape.read(tmp_path) == shape
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"] == {"target_layer_ids": [0, 2], "mask_token_id": 63}
    draft = read_draft(load_model(str(tmp_path)))
    check_fit(draft, load_model(str(checkpoint)), tensor=1, backend="vllm")
    assert draft.num_draft_tokens == 3


def test_weights_survive_the_disk(shape: DrafterShape, tmp_path: Path) -> None:
    drafter = Drafter(shape)
    save_drafter(drafter, tmp_path)
    for name, value in load_drafter(tmp_path).state_dict().items():
        assert torch.equal(value, drafter.state_dict()[name].to(torch.bfloat16).float()), name


def test_tensors_that_the_config_does_not_describe_are_refused(shape: DrafterShape, tmp_path: Path) -> None:
    save_drafter(Drafter(shape), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(InputError, match="not those that its config.json describes"):
        load_drafter(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"captured_layers": (0, 4)}, "Layer 4 cannot be captured: the target has layers 0 to 3"),
        ({"captured_layers": ()}, "No layer of the target is captured"),
        ({"mask_token_id": 64}, "mask token 64 is outside the target's vocabulary of 64"),
        ({"block_size": 1}, "A block of 1 drafts nothing"),
    ],
)
def test_a_drafter_that_cannot_be_is_refused(target: Any, wrong: dict[str, Any], says: str) -> None:
    given = {"layers": 2, "captured_layers": (0, 2), "block_size": 4, "mask_token_id": 63, **wrong}
    with pytest.raises(InputError, match=says):
        DrafterShape.for_target(target.config, **given)


def test_captured_layers_are_spread_as_z_lab_does() -> None:
    assert spread(36, 5) == (1, 9, 17, 25, 33)
    assert spread(30, 2) == (1, 27)
    assert spread(30, 1) == (15,)
