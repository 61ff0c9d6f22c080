"""Tensors on their way between the CPU and the device, with neither waiting for the other."""

from __future__ import annotations

import torch
from torch import Tensor


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` of the CPU on ``device``, without waiting for what the device has to do before."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Fetched:
    """A ``tensor`` of the device that the CPU will read later: then it waits for what the device had to do until now,
    and not for what it was given since."""

    def __init__(self, tensor: Tensor) -> None:
        self._here = tensor.to("cpu", non_blocking=True)
        self._arrived = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    def read(self) -> list[float]:
        if self._arrived is not None:
            self._arrived.synchronize()
        numbers: list[float] = self._here.tolist()
        return numbers
