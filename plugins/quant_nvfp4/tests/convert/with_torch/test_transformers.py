"""transformers loads what was written, through compressed-tensors, and computes with the values that are meant."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from optistack.paths import models_dir
from optistack_quant_nvfp4.codec import Packed, dequantize

TEXT = [1, 504, 3575, 282, 4649, 314, 260, 1112, 28, 284, 253, 2152, 327, 1194]


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)


def logits(model: Any) -> Any:
    """In FP32 of the BF16 weights. The first pass is what makes transformers unpack them."""
    with torch.no_grad():
        model(torch.tensor([TEXT[:1]]))
        return torch.nn.Module.float(model)(torch.tensor([TEXT])).logits


@pytest.mark.filterwarnings("ignore")
def test_logits_are_those_of_the_dequantized_weights(
    convert: Callable[..., Path], tensors: Callable[[Path], dict[str, Any]]
) -> None:
    source = models_dir() / "smollm2-135m"
    if not source.is_dir():
        missing = "smollm2-135m is not there: run `optistack model fetch smollm2-135m`"
        (pytest.fail if os.environ.get("OPTISTACK_REQUIRE_ENGINES") == "1" else pytest.skip)(missing)
    folder = convert(source, "--scope", "linear", "--format", "compressed-tensors")
    stored = tensors(folder)
    reference = load(source)
    plain = logits(load(source))
    count = 0
    with torch.no_grad():
        for name, module in reference.named_modules():
            if f"{name}.weight_packed" not in stored:
                continue
            whole = 1.0 / stored[f"{name}.weight_global_scale"].reshape(())
            packed = Packed(stored[f"{name}.weight_packed"], stored[f"{name}.weight_scale"], whole)
            module.weight.copy_(dequantize(packed, torch.bfloat16))
            count += 1
    assert count == 210
    wanted, found = logits(reference), logits(load(folder))
    noise = float((wanted - plain).norm() / plain.norm())
    assert float((found - wanted).norm() / wanted.norm()) < 0.02 * noise  # loading adds nothing to quantization's error
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))
