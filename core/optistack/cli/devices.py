"""``--device`` of commands that compute with torch. Plugins bring torch themselves, and tell here what it sees."""

from __future__ import annotations

import re

from optistack.errors import InputError


def check_device(device: str, gpus: int | None = None) -> None:
    """InputError when ``device`` names none, or one that is not there for a torch that sees so many ``gpus``: with None
    the name alone is checked, before torch is there."""
    found = re.fullmatch(r"cpu|cuda(?::([0-9]+))?", device)
    if found is None:
        raise InputError(f"{device!r} is no device.", fix="Give cpu, cuda or cuda:N.")
    if device != "cpu" and gpus is not None and int(found.group(1) or 0) >= gpus:
        there = f"cuda:0 to cuda:{gpus - 1}" if gpus > 1 else "cuda:0"
        fix = f"Give {there}, or cpu." if gpus else "Give --device cpu: this Python's torch sees no GPU."
        raise InputError(f"This machine has no device {device}.", fix=fix)
