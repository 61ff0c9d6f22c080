from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from optistack.errors import InputError
from optistack_kv_fp8.calibration.run import observe


def model_of(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    model.set_experts_implementation("eager")
    return model


def test_the_largest_k_and_v_are_those_in_the_cache(llama: Path, letters: Any) -> None:
    model = model_of(llama)
    seen = observe(model, letters, ["a prompt", "another one"], new_tokens=1, per_head=True)
    for layer in (0, 1):
        keys, values = torch.zeros(2), torch.zeros(2)
        for prompt in ("a prompt", "another one"):
            cache = DynamicCache(config=model.config)
            with torch.inference_mode():
                model(**letters(prompt, return_tensors="pt"), past_key_values=cache)
            keys = torch.maximum(keys, cache.layers[layer].keys.float().abs().amax((0, 2, 3)))
            values = torch.maximum(values, cache.layers[layer].values.float().abs().amax((0, 2, 3)))
        assert torch.equal(seen.kv.layers[layer][0].amax(), keys)
        assert torch.equal(seen.kv.layers[layer][1].amax(), values)


def test_its_own_text_is_counted_too(llama: Path, letters: Any) -> None:
    seen = observe(model_of(llama), letters, ["abc"], new_tokens=6)
    # The last token that is written is not read again, so its K and V are not cached.
    assert seen.tokens == 9
    assert int(seen.kv.layers[0][0].counts.sum()) == 8 * 2 * 8


def test_mla_has_one_scale_of_latent_and_rotary_part(deepseek: Path, letters: Any) -> None:
    seen = observe(model_of(deepseek), letters, ["abc"], new_tokens=1, per_head=True)
    assert seen.mla
    key, value = seen.kv.layers[1]
    assert key is value
    assert int(key.counts.sum()) == 3 * (16 + 8)


def test_every_linear_layer_has_an_input_amax_under_its_name_in_the_checkpoint(deepseek: Path, letters: Any) -> None:
    model = model_of(deepseek)
    largest: dict[str, float] = {}

    def watch(name: str) -> Any:
        def hook(_: Any, args: Any) -> None:
            largest[name] = max(largest.get(name, 0.0), float(args[0].abs().max()))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(watch(name))
    seen = observe(model, letters, ["some text", "with other words"], new_tokens=4)
    assert largest.items() <= seen.input_amax.items()
    experts = {f"model.layers.1.mlp.experts.{i}.{part}_proj" for i in range(4) for part in ("gate", "up", "down")}
    assert experts <= set(seen.input_amax)
    mlp = "model.layers.1.mlp"
    assert seen.input_amax[f"{mlp}.experts.0.gate_proj"] == seen.input_amax[f"{mlp}.experts.0.up_proj"]
    shared = seen.input_amax[f"{mlp}.shared_experts.gate_proj"]
    assert shared == max(seen.input_amax[f"{mlp}.experts.{i}.gate_proj"] for i in range(4))


def test_a_model_that_caches_nan_is_refused(llama: Path, letters: Any) -> None:
    model = model_of(llama)
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[0, 0] = float("nan")
    # Sampling from NaN fails by itself, so one token is written to the cache and none is drawn.
    model.lm_head.weight.data.zero_()
    model.model.norm.forward = torch.zeros_like
    with pytest.raises(InputError, match="caches NaN or infinity in layers 1"):
        observe(model, letters, ["abc"], new_tokens=1)
