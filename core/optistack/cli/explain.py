"""``optistack explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from optistack.cli import options
from optistack.cli.commands import new_app

if TYPE_CHECKING:
    from optistack.explain import Known

app = new_app()


@app.command(context_settings={"ignore_unknown_options": True})
def explain(
    topic: Annotated[str, typer.Argument(help="A rule, a setting (kv.dtype), plugin.option, or a flag of the engine.")],
    stack: options.Stack = options.DEFAULT_STACK,
    backend: options.Backend = None,
    node: options.Node = None,
    json: options.Json = False,
) -> None:
    """Explain a rule, a flag or a setting.

    With a stack file, what its plan does with it and why; flags are explained only for a stack.
    """
    from optistack.cli import screen
    from optistack.explain import explain

    explained = explain(topic, _known(options.Choice(stack=stack, backend=backend, node=node)))
    if json:
        screen.print_json(explained)
        return
    from optistack.cli.views.explanation import explanation_view

    screen.show(*explanation_view(explained, wide=screen.is_pipe()))


def _known(chosen: options.Choice) -> Known:
    """Every rule that is installed; the plan where there is a stack file for it."""
    from optistack.backend import backend_names, get_backend
    from optistack.cli.workplace import open_stack
    from optistack.explain import Known
    from optistack.host import Host
    from optistack.plan.core_rules import CORE_RULES
    from optistack.rules import Rule

    plan = None
    host = Host.from_environment()
    if chosen.stack != options.DEFAULT_STACK or chosen.stack.exists():
        plan = open_stack(chosen).plan()
    rules = [("optistack", rule) for rule in CORE_RULES]
    rules += [(name, rule) for name in backend_names() for rule in get_backend(name).rules()]
    for plugin in host.plugins():
        rules += [(plugin.name, rule) for rule in host.call_many(plugin, "optistack_rules", Rule)]
    return Known(rules=rules, plugins=host.plugins(), plan=plan)
