"""Reading the receipts that the program prints."""

from __future__ import annotations

from typing import Any


def lines_of(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The lines of the first receipt by their ids, of ``apply --json`` or of ``verify --json``."""
    receipt = answer["receipts"][0] if "receipts" in answer else answer
    return {line["id"]: line for line in receipt["results"]}
