"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object], *, timeout_s: float, interval_s: float = 0.1) -> None:
    """Return once ``true()`` is; fail after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"still not true after {timeout_s} s"
        time.sleep(interval_s)
