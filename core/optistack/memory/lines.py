"""One line of a memory budget."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class MemoryLine(BaseModel):
    """``bytes`` taken by ``label`` on one GPU (or of the host), and why; the rest as in ``MemoryCharge``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    bytes: int
    why: str = ""
    while_serving: bool = False
    weights: bool = False


def total(lines: tuple[MemoryLine, ...]) -> int:
    """Bytes of all ``lines`` together."""
    return sum(line.bytes for line in lines)
