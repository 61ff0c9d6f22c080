"""Python source that is on any machine, split by package into training and held-out text."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

LEAST_BYTES, MOST_BYTES = 2_000, 200_000
HELD_OUT = 8
"""One package in so many is held out."""
PACKAGES = {"site-packages", "dist-packages"}


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def _roots() -> Iterator[Path]:
    """The standard library, and wherever packages are: a venv's folder, the interpreter's, Debian's."""
    yield Path(sysconfig.get_path("stdlib"))
    for entry in sys.path:
        if Path(entry).name in PACKAGES:
            yield Path(entry)


def sources(*, held_out: bool) -> Iterator[str]:
    """The texts of the split, in an order that only names decide."""
    found: dict[str, Path] = {}
    for root in _roots():
        for path in root.rglob("*.py"):
            name = path.relative_to(root)
            if not PACKAGES.isdisjoint(name.parts):  # packages below the standard library have a root of their own
                continue
            if (_digest(name.parts[0]) % HELD_OUT == 0) == held_out:
                found[str(name)] = path
    for name in sorted(found, key=_digest):
        try:
            if LEAST_BYTES <= found[name].stat().st_size <= MOST_BYTES:
                yield found[name].read_text()
        except (OSError, UnicodeDecodeError):
            continue
