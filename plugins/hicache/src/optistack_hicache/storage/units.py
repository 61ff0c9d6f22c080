"""Sizes and ages as people write them."""

from __future__ import annotations

import re

from optistack.errors import InputError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def parse_bytes(text: str) -> int:
    """Bytes of ``400GiB`` (powers of 1024), ``400GB`` or ``400G`` (of 1000) or ``1048576``.

    InputError if it is none of these, or a part of a byte: somebody forgot the unit.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{text!r} is no size.", fix="Write it like 400GiB, 400GB or 1048576.")
    power = " kmgtp".index(found[2].lower() or " ")
    if power == 0 and "." in found[1]:
        raise InputError(f"{text!r} has no unit, and there is no part of a byte.", fix=f"Write {found[1]}GiB or so.")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def parse_age_s(text: str) -> float:
    """Seconds of ``30m``, ``12h``, ``7d`` or ``2w``. InputError if it is none."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{text!r} is no age.", fix="Write it like 30m, 12h, 7d or 2w.")
    return float(found[1]) * _SECONDS[found[2].lower()]


def bytes_word(size_bytes: int) -> str:
    """``size_bytes`` in the binary unit that leaves it above 1: ``1.50 GiB``."""
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_BINARY) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{size:.2f} {_BINARY[unit]}"


def age_word(age_s: float) -> str:
    """``age_s`` in its largest whole unit: ``3d``."""
    for unit, seconds in reversed(_SECONDS.items()):
        if age_s >= seconds:
            return f"{age_s / seconds:.0f}{unit}"
    return "now"
