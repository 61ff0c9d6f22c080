"""A conformance case: what a plugin asks of an engine that runs it, in any composition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.receipt import CheckResult


@dataclass(frozen=True)
class ConformanceCase:
    """``id`` is stable and unique (``dflash/tokens-are-the-targets``); ``tier`` is 0 contract, 1 lossless, 2 lossy."""

    id: str
    tier: int
    summary: str
    run: Callable[[Endpoint], CheckResult]
