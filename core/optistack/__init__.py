"""optistack: a plugin host for LLM inference optimizations.

Plugin authors need three names from here: ``hookimpl`` marks a hook implementation, ``PluginInfo`` describes the
plugin, and the settings classes in :mod:`optistack.settings` are what hooks return. :mod:`optistack.hookspecs` is the
whole contract.
"""

from optistack.markers import hookimpl

__version__ = "0.1.0"
__all__ = ["__version__", "hookimpl"]
