"""A draft for another target is refused, and the sentence says why and names both."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from optistack.errors import InputError, PlanRefusedError
from optistack.stack.spec import ParallelSection


def refusal(bench: Any, **options: Any) -> str:
    with pytest.raises(PlanRefusedError) as caught:
        bench.resolve(**options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_size": 128}, "its hidden size is 128, the target's is 64"),
        ({"vocab_size": 1024}, "its vocabulary has 1024 tokens, the target's 1000"),
        ({"num_target_layers": 61}, "trained for a target of 61 layers, this one has 8"),
        ({"target_hidden_size": 96}, "it reads hidden states of width 96, the target's are 64 wide"),
        ({"dflash_config": {"target_layer_ids": [], "mask_token_id": 1}}, "name no layer of the target"),
        ({"dflash_config": {"mask_token_id": 1}}, "name no layer of the target"),
        ({"dflash_config": {"target_layer_ids": [1, 8], "mask_token_id": 1}}, "reads layer 8 of the target.* 0 to 7"),
        ({"dflash_config": {"target_layer_ids": [-1], "mask_token_id": 1}}, "reads layer -1"),
        ({"dflash_config": {"target_layer_ids": [1]}}, "names no mask token"),
        ({"dflash_config": {"target_layer_ids": [1], "mask_token_id": 1000}}, "mask token 1000 is outside"),
    ],
)
def test_a_misfit_is_named(bench: Any, change: dict[str, Any], sentence: str) -> None:
    bench.draft.update(change)
    with pytest.raises(PlanRefusedError, match=sentence) as caught:
        bench.resolve()
    assert str(bench.draft_folder) in caught.value.message
    assert str(bench.folder / "target") in caught.value.message


def test_every_misfit_is_named_at_once(bench: Any) -> None:
    bench.draft.update(hidden_size=128, vocab_size=1024)
    message = refusal(bench)
    assert "hidden size" in message
    assert "vocabulary" in message


def test_heads_must_divide_over_the_ranks(bench: Any) -> None:
    bench.parallel = ParallelSection(tensor=3)
    message = refusal(bench)
    assert "8 attention heads do not divide over 3" in message
    assert "4 KV heads do not divide over 3" in message


def test_fewer_kv_heads_than_ranks_are_repeated(bench: Any) -> None:
    bench.draft["num_key_value_heads"] = 2
    bench.parallel = ParallelSection(tensor=4)
    assert bench.resolve().speculation.num_draft_tokens.value == 7


def test_a_mask_token_by_text_is_enough_for_sglang_only(bench: Any) -> None:
    bench.draft["dflash_config"] = {"target_layer_ids": [1], "mask_token": "<|MASK|>"}
    assert bench.resolve().speculation.method.value == "dflash"
    bench.backend = "vllm"
    assert "vLLM needs mask_token_id" in refusal(bench)


def test_an_ordinary_model_is_no_draft(bench: Any) -> None:
    bench.draft = dict(bench.target)
    assert "is not a DFlash draft" in refusal(bench)


def test_a_block_of_one_drafts_nothing(bench: Any) -> None:
    bench.draft["block_size"] = 1
    assert "block_size is 1" in refusal(bench)


def test_without_a_block_size_the_number_of_tokens_must_be_given(bench: Any) -> None:
    del bench.draft["block_size"]
    assert "gives no block_size" in refusal(bench)
    assert bench.resolve(num_draft_tokens=5).speculation.num_draft_tokens.value == 5


def test_the_block_size_may_be_nested(bench: Any) -> None:
    del bench.draft["block_size"]
    bench.draft["dflash_config"]["block_size"] = 16
    assert bench.resolve().speculation.num_draft_tokens.value == 15


@pytest.mark.parametrize("value", ["8", True, 8.5])
def test_a_malformed_key_is_named(bench: Any, value: Any) -> None:
    bench.draft["block_size"] = value
    assert "says block_size is" in refusal(bench)


def test_malformed_layers_are_named(bench: Any) -> None:
    bench.draft["dflash_config"] = {"target_layer_ids": ["a"], "mask_token_id": 1}
    assert "not a list of whole numbers" in refusal(bench)


class TestProjection:
    """``fc.weight`` by the safetensors header: 3 captured layers of width 64 need [64, 192]."""

    def write_fc(self, folder: Path, *shape: int) -> None:
        tensors = {
            "fc.weight": shape,
            "layers.0.self_attn.q_proj.weight": (64, 64),
            "layers.1.self_attn.q_proj.weight": (64, 64),
        }
        header, end = {}, 0
        for name, size in tensors.items():
            begin, end = end, end + 2 * size[0] * size[1]
            header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))

    def test_the_right_shape_passes(self, bench: Any) -> None:
        self.write_fc(bench.write("draft", bench.draft), 64, 192)
        assert bench.resolve().speculation.num_draft_tokens.value == 7

    def test_weights_of_another_draft_are_refused(self, bench: Any) -> None:
        self.write_fc(bench.write("draft", bench.draft), 64, 320)
        assert "fc.weight is [64, 320], and 3 captured layers need [64, 192]" in refusal(bench)


def test_dflash_settings_that_are_no_object_are_refused_with_the_file(bench: Any) -> None:
    bench.draft["dflash_config"] = 3
    with pytest.raises(InputError, match="config.json says dflash_config is 3, which is not an object"):
        bench.resolve()
