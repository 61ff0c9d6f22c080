"""Typed settings: what plugins return and how opinions are merged."""

from optistack.settings.domains import (
    CacheTier,
    EngineArgument,
    KVLayout,
    MemoryCharge,
    Routing,
    Serving,
    Settings,
    Speculation,
    WeightQuantization,
)
from optistack.settings.values import UNSET, Origin, Value, choose, constrain, merge, suggest

__all__ = [
    "UNSET",
    "CacheTier",
    "EngineArgument",
    "KVLayout",
    "MemoryCharge",
    "Origin",
    "Routing",
    "Serving",
    "Settings",
    "Speculation",
    "Value",
    "WeightQuantization",
    "choose",
    "constrain",
    "merge",
    "suggest",
]
