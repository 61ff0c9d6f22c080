"""optistack: a plugin host for LLM inference optimizations.

Plugin authors need three names from here: ``hookimpl`` marks a hook implementation, ``PluginInfo`` describes the
plugin, and the settings classes in :mod:`optistack.settings` are what hooks return. :mod:`optistack.hookspecs` is the
whole contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optistack.markers import hookimpl

__version__ = "0.1.0"
__all__ = ["__version__", "hookimpl"]


def __getattr__(name: str) -> Any:
    # Not every start needs pluggy: --help has 0.25 s, and a deployment's guardian keeps to the standard library.
    if name == "hookimpl":
        from optistack.markers import hookimpl

        return hookimpl
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
