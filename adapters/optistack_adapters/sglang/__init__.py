"""The adapter for SGLang."""

from optistack_adapters.sglang.backend import backend

__all__ = ["backend"]
