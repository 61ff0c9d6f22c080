"""Whether the libraries of the extra ``bench`` are there; imports none of them."""

from __future__ import annotations

from optistack.errors import InputError

NEEDED = ("httptools",)


def check_installed(*names: str) -> None:
    """Raise InputError when libraries of the extra are missing: ``names``, or without any what measuring takes."""
    from importlib.util import find_spec

    missing = [name for name in names or NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(
            f"The benchmark needs {', '.join(missing)}.", fix="In a clone of optistack, run: pip install '.[bench]'"
        )
