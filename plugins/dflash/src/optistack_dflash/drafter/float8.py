"""Drafters in FP8 (E4M3): the checkpoint that vLLM and SGLang read as ``quant_method: fp8``, and its arithmetic.

The linear layers of the drafter's layers are kept in FP8 with one scale each (``weight_scale``, FP32); activations are
quantized when they are used, with one scale a token, as the engines' kernels for Hopper and Blackwell do it. ``fc``
stays in BF16: SGLang makes it without a quantization whatever the config says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FORMAT = torch.float8_e4m3fn
LARGEST = torch.finfo(FORMAT).max
CONFIG: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    # vLLM knows the layer by the second name, and compares whole names.
    "modules_to_not_convert": ["fc", "model.fc"],
}
"""``quantization_config`` of the checkpoint."""

_LINEAR = re.compile(r"layers\.\d+\.\w+\.\w+_proj\.weight")
_FUSED = ({"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"})


class Float8Linear(nn.Linear):
    """A linear layer whose weights came from FP8 and whose input is rounded to FP8."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = wide.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST
        return functional.linear(((wide / scale).to(FORMAT).float() * scale).to(x.dtype), self.weight)


def to_float8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A drafter's ``tensors`` with those of its layers' linear layers in FP8 and ``weight_scale`` beside each.

    Matrices that engines join into one (q, k, v; gate, up) get the same scale: with several, vLLM quantizes them anew
    to the largest.
    """
    found: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if _LINEAR.fullmatch(name):
            scale = max(tensors[one].float().abs().max() for one in _joined(name)).clamp(min=1e-12) / LARGEST
            found[name] = (value.float() / scale).clamp(-LARGEST, LARGEST).to(FORMAT)
            found[f"{name}_scale"] = scale.clone()
        else:
            found[name] = value
    return found


def is_float8(tensors: Mapping[str, Tensor]) -> bool:
    return any(value.dtype == FORMAT for value in tensors.values())


def from_float8(drafter: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that FP8 ``tensors`` stand for; the linear layers of ``drafter`` that are in FP8 round their inputs
    from now on. KeyError when a scale is missing."""
    found = {name: value for name, value in tensors.items() if not name.endswith(".weight_scale")}
    for name, value in found.items():
        if value.dtype == FORMAT:
            found[name] = value.float() * tensors[f"{name}_scale"]
            drafter.get_submodule(name.removesuffix(".weight")).__class__ = Float8Linear
    return found


def _joined(name: str) -> list[str]:
    module, linear, weight = name.rsplit(".", 2)
    group = next((group for group in _FUSED if linear in group), {linear})
    return [f"{module}.{one}.{weight}" for one in sorted(group)]
