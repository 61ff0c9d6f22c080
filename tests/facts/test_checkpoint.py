"""Finding a checkpoint, and refusing one that is not what it says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from optistack.errors import InputError
from optistack.facts import load_model


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


def cache(hub: Path, folder: Path, hub_id: str, commit: str = "abc123") -> Path:
    """Put ``folder`` into the cache as the library lays it out: blobs, and links to them in a snapshot."""
    repository = hub / f"models--{hub_id.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir(exist_ok=True)
    for file in folder.iterdir():
        blob = repository / "blobs" / f"{commit}-{file.name}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(blob)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    return snapshot


def test_folder_with_weights(write_folder: Any, made: Any) -> None:
    folder = write_folder(made.llama_config(), made.llama_tensors())
    facts = load_model(str(folder))
    assert facts.evidence == "headers"
    assert facts.path == folder.resolve()
    assert facts.architecture == "LlamaForCausalLM"
    assert (facts.layers, facts.dense_layers, facts.hidden, facts.vocab) == (2, 2, 64, 96)
    assert facts.attention.kind == "gqa"
    assert facts.attention.head_dim == 16
    assert facts.weight_bytes == 2 * facts.parameters
    assert facts.kv_scales is False


def test_config_and_headers_agree_on_every_component(write_folder: Any, made: Any) -> None:
    folder = write_folder(made.llama_config(), made.llama_tensors())
    from_headers = load_model(str(folder))
    from_config = load_model(str(folder / "config.json"))
    assert from_config.evidence == "config"
    assert from_config.path is None
    assert from_config.components == from_headers.components


def test_folder_with_a_config_alone(write_folder: Any, made: Any) -> None:
    folder = write_folder(made.llama_config())
    facts = load_model(str(folder))
    assert facts.evidence == "config"
    assert facts.path == folder.resolve()


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no folder"):
        load_model(str(tmp_path / "nowhere"))


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is empty"):
        load_model(str(tmp_path))


def test_folder_without_config(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("hello")
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_model(str(tmp_path))


def test_config_that_does_not_parse(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 64,\n}')
    with pytest.raises(InputError, match="line 2, column 1"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_config_without_a_needed_key(write_folder: Any, made: Any, key: str) -> None:
    config = made.llama_config()
    del config[key]
    with pytest.raises(InputError, match=f"has no '{key}'"):
        load_model(str(write_folder(config)))


def test_config_with_an_absurd_value(write_folder: Any, made: Any) -> None:
    with pytest.raises(InputError, match="'hidden_size' is 'wide'"):
        load_model(str(write_folder(made.llama_config(hidden_size="wide"))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 128}, "hidden_size is 128"),
        ({"num_hidden_layers": 3}, "no tensor is of layer 2"),
        ({"num_hidden_layers": 1}, "there are tensors of layer 1"),
        ({"num_key_value_heads": 4}, "num_key_value_heads x head_dim is 64"),
        ({"vocab_size": 5}, "vocab_size is 5"),
        ({"intermediate_size": 1}, "intermediate_size is 1"),
        ({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}, "every tensor is plain (BF16)"),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}},
            "the weights are quantized (NVFP4)",
        ),
    ],
)
def test_config_that_contradicts_its_tensors(write_folder: Any, made: Any, change: Any, message: str) -> None:
    folder = write_folder(made.llama_config(**change), made.llama_tensors())
    with pytest.raises(InputError) as caught:
        load_model(str(folder))
    assert "contradicts the tensors" in caught.value.message
    assert message in caught.value.message


def test_the_layers_of_a_vision_tower_have_widths_of_their_own(write_folder: Any, made: Any) -> None:
    tower = "vision_tower.vision_model.encoder.layers.0"
    own = {f"{tower}.self_attn.k_proj.weight": ("BF16", (48, 48)), f"{tower}.mlp.gate_proj.weight": ("BF16", (96, 48))}
    folder = write_folder(made.llama_config(), {**made.llama_tensors(), **own})
    assert load_model(str(folder)).layers == 2


def test_hub_id_from_the_cache(hub: Path, write_folder: Any, made: Any) -> None:
    snapshot = cache(hub, write_folder(made.llama_config(), made.llama_tensors()), "org/tiny")
    facts = load_model("org/tiny")
    assert facts.source == "org/tiny"
    assert facts.evidence == "headers"
    assert facts.path == snapshot.resolve()


def test_hub_id_by_commit(hub: Path, write_folder: Any, made: Any) -> None:
    cache(hub, write_folder(made.llama_config()), "org/tiny", commit="abc123")
    assert load_model("org/tiny", revision="abc123").evidence == "config"
    with pytest.raises(InputError, match="not at revision 'v2'; there is abc123"):
        load_model("org/tiny", revision="v2")


def test_cache_is_found_through_hf_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_folder: Any, made: Any
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    cache(tmp_path / "home" / "hub", write_folder(made.llama_config()), "org/tiny")
    assert load_model("org/tiny").vocab == 96


def test_hub_id_that_is_not_cached(hub: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_model("org/absent")
    assert str(hub) in caught.value.message
    assert "hf download org/absent" in caught.value.fix


def test_half_downloaded_snapshot(hub: Path, write_folder: Any, made: Any) -> None:
    snapshot = cache(hub, write_folder(made.llama_config(), made.llama_tensors()), "org/tiny")
    (snapshot / "config.json").unlink()
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_model("org/tiny")


def test_config_fallback_for_a_hub_id(hub: Path, write_folder: Any, made: Any) -> None:
    folder = write_folder(made.llama_config())
    for fallback in (folder, folder / "config.json"):
        facts = load_model("org/absent", config_fallback=fallback)
        assert (facts.source, facts.path, facts.evidence) == ("org/absent", None, "config")


def test_fallback_is_not_used_when_the_model_is_there(hub: Path, write_folder: Any, made: Any) -> None:
    cache(hub, write_folder(made.llama_config(), made.llama_tensors()), "org/tiny")
    other = write_folder(made.llama_config(vocab_size=50), name="other")
    assert load_model("org/tiny", config_fallback=other).vocab == 96


def test_speculators_draft_counts_layers_from_zero(write_folder: Any, made: Any) -> None:
    decoder = made.llama_config(model_type="qwen3", tie_word_embeddings=False)
    del decoder["architectures"]
    config = {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": decoder,
        "aux_hidden_state_layer_ids": [2, 28],
        "mask_token_id": 5,
        "block_size": 8,
    }
    facts = load_model(str(write_folder(config)))
    assert facts.draft_config == {"target_layer_ids": [1, 27], "mask_token_id": 5, "block_size": 8}
    assert (facts.hidden, facts.layers) == (64, 2)


def test_fingerprint_tells_checkpoints_apart(write_folder: Any, made: Any) -> None:
    config, tensors = made.llama_config(), made.llama_tensors()
    first = load_model(str(write_folder(config, tensors, name="first")))
    same = load_model(str(write_folder(config, tensors, name="same")))
    tuned = load_model(str(write_folder(config, tensors, name="tuned", fill=7)))
    longer = load_model(str(write_folder(made.llama_config(max_position_embeddings=1024), tensors, name="longer")))
    assert first.fingerprint == same.fingerprint
    assert len({first.fingerprint, tuned.fingerprint, longer.fingerprint}) == 3


@pytest.mark.parametrize("kind", ["embed_tokens", "q_proj", "down_proj", "norm"])
def test_a_fine_tune_of_one_kind_of_weights_is_told_from_its_base(write_folder: Any, made: Any, kind: str) -> None:
    base = write_folder(made.llama_config(), made.llama_tensors(), name="base")
    tuned = write_folder(made.llama_config(), made.llama_tensors(), name="tuned")
    file = tuned / "model.safetensors"
    content = bytearray(file.read_bytes())
    length = int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if f"{kind}." in name:
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            content[begin:end] = b"\1" * (end - begin)
    file.write_bytes(content)
    assert load_model(str(base)).fingerprint != load_model(str(tuned)).fingerprint


def test_fingerprint_ignores_how_json_is_laid_out(write_folder: Any, made: Any) -> None:
    folder = write_folder(made.llama_config())
    before = load_model(str(folder)).fingerprint
    (folder / "config.json").write_text(json.dumps(dict(reversed(made.llama_config().items())), indent=4))
    assert load_model(str(folder)).fingerprint == before
