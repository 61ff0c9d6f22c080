"""The order in which plugins are called: by domain, by declared ``before``/``after``, then by name."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from optistack.errors import PlanRefusedError
from optistack.plugin import Domain

if TYPE_CHECKING:
    from optistack.host import Plugin

_DOMAINS = list(Domain)


def by_domain(plugin: Plugin) -> tuple[int, str]:
    """The order of plugins that declare none."""
    return _DOMAINS.index(plugin.info.domain), plugin.name


def in_order(plugins: Iterable[Plugin]) -> list[Plugin]:
    """``plugins`` in calling order, whatever order they come in.

    Names in ``before`` and ``after`` that are not among ``plugins`` are ignored. Raises PlanRefusedError on a cycle.
    """
    by_name = {plugin.name: plugin for plugin in plugins}
    graph: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(by_name, ()))
    for plugin in by_name.values():
        for earlier in plugin.info.after:
            if earlier in by_name:
                graph.add(plugin.name, earlier)
        for later in plugin.info.before:
            if later in by_name:
                graph.add(later, plugin.name)
    try:
        graph.prepare()
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise PlanRefusedError(f"The order of these plugins is a circle: {circle}.", fix="Leave one out.") from error
    ordered: list[Plugin] = []
    ready: set[str] = set()
    while graph.is_active():
        ready.update(graph.get_ready())
        name = min(ready, key=lambda name: by_domain(by_name[name]))
        ready.remove(name)
        graph.done(name)
        ordered.append(by_name[name])
    return ordered
