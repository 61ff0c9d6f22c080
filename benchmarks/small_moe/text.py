"""Python source that is on any machine, split by package into training and held-out text."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

LEAST_BYTES, MOST_BYTES = 2_000, 200_000
HELD_OUT = 8
"""One package in so many is held out."""


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def sources(*, held_out: bool) -> Iterator[str]:
    """The texts of the split, in an order that only names decide."""
    paths = sysconfig.get_paths()
    found: dict[str, Path] = {}
    for root in (Path(paths["stdlib"]), Path(paths["purelib"])):
        for path in root.rglob("*.py"):
            name = path.relative_to(root)
            if "site-packages" in name.parts and root.name != "site-packages":
                continue
            if (_digest(name.parts[0]) % HELD_OUT == 0) == held_out:
                found[str(name)] = path
    for name in sorted(found, key=_digest):
        try:
            if LEAST_BYTES <= found[name].stat().st_size <= MOST_BYTES:
                yield found[name].read_text()
        except (OSError, UnicodeDecodeError):
            continue
