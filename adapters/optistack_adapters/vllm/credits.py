"""Provenance of a JSON flag that carries several settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optistack.settings import Value
from optistack_adapters.base import credit


def joint_credit(parts: Mapping[str, Value[Any]]) -> dict[str, str]:
    """``source``, ``why`` and ``reference`` of all ``parts``; each reason is led by its key."""
    credits = {key: credit(value) for key, value in parts.items()}
    sources = [source for part in credits.values() for source in part["source"].split("; ") if source]
    return {
        "source": "; ".join(dict.fromkeys(sources)),
        "why": "; ".join(f"{key}: {part['why']}" for key, part in credits.items() if part["why"]),
        "reference": "; ".join(dict.fromkeys(part["reference"] for part in credits.values() if part["reference"])),
    }
