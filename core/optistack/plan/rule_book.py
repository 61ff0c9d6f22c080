"""Every rule that this installation knows, whoever brings it."""

from __future__ import annotations

from optistack.backend import backend_names, get_backend
from optistack.host import Host
from optistack.plan.core_rules import CORE_RULES
from optistack.rules import Rule


def all_rules(host: Host) -> list[tuple[str, Rule]]:
    """The rules with who brings each: ``optistack``, a backend or a plugin, in this order."""
    rules = [("optistack", rule) for rule in CORE_RULES]
    rules += [(name, rule) for name in backend_names() for rule in get_backend(name).rules()]
    for plugin in host.plugins():
        rules += [(plugin.name, rule) for rule in host.call_many(plugin, "optistack_rules", Rule)]
    return rules
