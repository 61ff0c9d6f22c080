"""What a transformers model writes to its KV cache and feeds its linear layers while it generates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers.cache_utils import DynamicCache

from optistack.errors import InputError
from optistack_kv_fp8.calibration.histogram import Magnitudes


class KVStatistics:
    """Magnitudes of K (after rotary embedding) and V by layer; for MLA of the latent and its rotary part together,
    which share one scale."""

    def __init__(self, *, per_head: bool, mla: bool) -> None:
        self.per_head, self.mla = per_head, mla
        self.layers: dict[int, tuple[Magnitudes, Magnitudes]] = {}

    def add(self, layer: int, keys: Tensor, values: Tensor) -> None:
        if self.mla and keys.shape[1] != 1:
            raise InputError(
                "This transformers caches MLA's K and V expanded, and engines cache the latent.",
                fix="Use a transformers that caches the latent (5.19 does).",
            )
        if layer not in self.layers:
            heads = keys.shape[1] if self.per_head else 1
            key = Magnitudes(heads)
            self.layers[layer] = (key, key if self.mla else Magnitudes(heads))
        key, value = self.layers[layer]
        key.add(keys)
        value.add(values)


class ObservedCache(DynamicCache):
    """A cache that counts what is written to it."""

    def __init__(self, statistics: KVStatistics, config: Any) -> None:
        super().__init__(config=config)
        self._statistics = statistics

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        self._statistics.add(layer_idx, key_states, value_states)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


class InputAmax(TorchFunctionMode):
    """The largest magnitude of each linear layer's input, by the layer's name in the checkpoint.

    It watches ``torch.nn.functional.linear``, which linear layers and, one expert at a time, experts that are held in
    one tensor go through (transformers' ``eager`` experts).
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.amax: dict[str, float] = {}
        self._names = {}
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and name.endswith(".weight"):
                self._names[weight.data_ptr()] = [name.removesuffix(".weight")]
            elif weight.dim() == 3:
                for expert in range(weight.shape[0]):
                    self._names[weight[expert].data_ptr()] = _expert(name, expert)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.linear and len(args) > 1 and args[0].numel():
            largest = None
            for name in self._names.get(args[1].data_ptr(), ()):
                largest = float(args[0].abs().amax()) if largest is None else largest
                self.amax[name] = max(self.amax.get(name, 0.0), largest)
        return func(*args, **(kwargs or {}))


def _expert(name: str, expert: int) -> list[str]:
    """The modules of a checkpoint that row ``expert`` of the tensor ``name`` was gathered from."""
    module, _, leaf = name.rpartition(".")
    return [f"{module}.{expert}.{part}" for part in _PARTS.get(leaf, (leaf,))]


_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
