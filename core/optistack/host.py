"""The plugin host: finds plugins, isolates broken ones, orders the rest and checks what they return.

A typed facade over pluggy, which by itself orders by registration, does not check return values, and lets one plugin
that fails to import take the program down.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from optistack import hookspecs
from optistack.contract import breach, in_one_line, unmarked_hooks
from optistack.errors import InputError, OptistackError, PlanRefusedError, where_to_get
from optistack.markers import PROJECT
from optistack.ordering import by_domain, in_order
from optistack.plugin import HOOK_API, PluginInfo

GROUP = "optistack.plugins"
DISABLE_VARIABLE = "OPTISTACK_DISABLE_PLUGINS"


@dataclass(frozen=True)
class Plugin:
    """A plugin that loaded. ``hooks`` names the hooks it implements; ``distribution`` is ``name version``."""

    info: PluginInfo
    distribution: str
    hooks: tuple[str, ...]
    module: Any = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.info.name


@dataclass(frozen=True)
class LoadFailure:
    """A plugin that did not load, and why. It is listed and not used; the others work."""

    name: str
    distribution: str
    error: str


class Host:
    """All plugins of an installation.

    ``Host.from_environment()`` reads entry points; tests and embedders register modules with :meth:`register`.
    """

    def __init__(self) -> None:
        self._pm = pluggy.PluginManager(PROJECT)
        self._pm.add_hookspecs(hookspecs)
        self._plugins: dict[str, Plugin] = {}
        self.failures: list[LoadFailure] = []
        self.disabled: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, disable: Iterable[str] = ()) -> Host:
        """Load the entry points of group ``optistack.plugins``, in order of name.

        Names in ``disable`` and in ``OPTISTACK_DISABLE_PLUGINS`` (separated by commas) are not imported at all.
        """
        host = cls()
        off = {*disable, *(name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(",") if name.strip())}
        found = sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))
        host.disabled = tuple(sorted(off & {entry.name for entry in found}))
        for entry in found:
            if entry.name not in off:
                host._load(entry)
        return host

    def register(self, module: Any, *, name: str, distribution: str = "") -> Plugin:
        """Register a module or object with hook implementations under ``name``.

        Raises InputError, and leaves nothing registered, when it breaks the contract.
        """
        if name in self._plugins:
            raise InputError(f"Two plugins are called {name}: {self._plugins[name].distribution} and {distribution}.")
        try:
            self._pm.register(module, name=name)
            self._pm.check_pending()
            plugin = self._describe(module, name, distribution)
        except pluggy.PluginValidationError as error:
            self._unregister(name)
            raise InputError(f"Plugin {name} breaks the hook contract: {breach(error)}") from error
        except ValueError as error:
            # pluggy knows modules by identity: two names for one of them are one too many.
            raise InputError(f"Plugin {name} is a module that another name stands for already.") from error
        except OptistackError:
            self._unregister(name)
            raise
        self._plugins[name] = plugin
        return plugin

    def plugins(self) -> list[Plugin]:
        """Every loaded plugin, in the order in which hooks are called.

        Where their declarations are a circle, by domain and name: that is for a stack to refuse which has them in it.
        """
        try:
            return in_order(self._plugins.values())
        except PlanRefusedError:
            return sorted(self._plugins.values(), key=by_domain)

    def get(self, name: str) -> Plugin:
        """The plugin called ``name``. Raises InputError with its load error, or the nearest name."""
        if name in self._plugins:
            return self._plugins[name]
        failed = next((failure for failure in self.failures if failure.name == name), None)
        if failed is not None:
            fix = f"Mend or upgrade {failed.distribution}, or take {name} out of the stack."
            raise InputError(f"Plugin {name} is installed but did not load: {failed.error}", fix=fix)
        if name in self.disabled:
            raise InputError(
                f"Plugin {name} is switched off.", fix=f"Take it out of --no-plugin or {DISABLE_VARIABLE}."
            )
        raise InputError(f"No plugin is called {name!r}.", fix=where_to_get(name, self._plugins))

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that no plugin here has, be it loaded, switched off or broken."""
        known = {*self._plugins, *self.disabled, *(failure.name for failure in self.failures)}
        return [name for name in names if name not in known]

    def select(self, names: Iterable[str]) -> list[Plugin]:
        """The plugins called ``names``, in the order in which hooks are called."""
        return in_order([self.get(name) for name in names])

    def call(self, plugin: Plugin, hook: str, expected: type[Any], **arguments: Any) -> Any:
        """Call ``hook`` of one plugin; ``None`` if it does not implement it.

        The answer must be an instance of ``expected``. Raises PlanRefusedError when the plugin raises or returns
        something else; errors meant for the user pass through.
        """
        if hook not in plugin.hooks:
            return None
        answer = self._guard(plugin.name, hook, lambda: self._answer(plugin.name, hook, arguments))
        if answer is not None and not isinstance(answer, expected):
            raise PlanRefusedError(_wrong_type(plugin.name, hook, expected, answer))
        return answer

    def call_many(self, plugin: Plugin, hook: str, element: type[Any], **arguments: Any) -> Sequence[Any]:
        """Like :meth:`call` for hooks that return a sequence of ``element``."""
        answer = self.call(plugin, hook, Sequence, **arguments) or ()
        for item in answer:
            if not isinstance(item, element):
                raise PlanRefusedError(_wrong_type(plugin.name, hook, element, item))
        return tuple(answer)

    def _answer(self, name: str, hook: str, arguments: dict[str, Any]) -> Any:
        others = [module for other, module in self._pm.list_name_plugin() if other != name]
        answers = self._pm.subset_hook_caller(hook, remove_plugins=others)(**arguments)
        return next(iter(answers), None) if isinstance(answers, list) else answers

    @staticmethod
    def _guard(name: str, hook: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except PlanRefusedError as error:
            error.plugin = name
            raise
        except OptistackError:
            raise
        except (Exception, SystemExit) as error:
            raise PlanRefusedError(
                f"Plugin {name} failed in {hook}: {in_one_line(error)}",
                fix=f"Leave it out with --no-plugin {name}; --debug shows where it fails.",
            ) from error

    def _load(self, entry: EntryPoint) -> None:
        distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
        try:
            module = entry.load()
        except (Exception, SystemExit) as error:  # whatever a third party's import raises leaves the others alone
            self.failures.append(LoadFailure(entry.name, distribution, in_one_line(error)))
            return
        try:
            self.register(module, name=entry.name, distribution=distribution)
        except OptistackError as error:
            self.failures.append(LoadFailure(entry.name, distribution, str(error)))

    def _describe(self, module: Any, name: str, distribution: str) -> Plugin:
        hooks = tuple(sorted(caller.name for caller in self._pm.get_hookcallers(module) or ()))
        if unmarked := unmarked_hooks(module, hooks):
            raise InputError(f"Plugin {name} defines {unmarked[0]} without @hookimpl: it would never be called.")
        if "optistack_plugin" not in hooks:
            raise InputError(f"Plugin {name} does not implement optistack_plugin.")
        try:
            info = self._guard(name, "optistack_plugin", lambda: self._answer(name, "optistack_plugin", {}))
        except PlanRefusedError as error:
            raise InputError(error.message) from error
        if not isinstance(info, PluginInfo):
            raise InputError(_wrong_type(name, "optistack_plugin", PluginInfo, info))
        if info.name != name:
            raise InputError(f"Plugin {name} calls itself {info.name}; entry point and PluginInfo must agree.")
        if info.hook_api != HOOK_API:
            raise InputError(
                f"Plugin {name} is written for hook API {info.hook_api}; this optistack has {HOOK_API}.",
                fix=f"Upgrade {'optistack' if info.hook_api > HOOK_API else f'optistack-{name}'}.",
            )
        return Plugin(info=info, distribution=distribution or f"{name} {info.version}", hooks=hooks, module=module)

    def _unregister(self, name: str) -> None:
        if self._pm.has_plugin(name):
            self._pm.unregister(name=name)


def _wrong_type(name: str, hook: str, expected: type[Any], answer: object) -> str:
    return f"Plugin {name} returned {type(answer).__name__} from {hook}; it must be {expected.__name__}."
