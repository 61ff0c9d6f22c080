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
    topic: Annotated[str, typer.Argument(help="A rule, setting, plugin, plugin.option, receipt line, or flag.")],
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
    from optistack.cli.workbench import open_stack
    from optistack.explain import Known
    from optistack.host import Host
    from optistack.plan.rule_book import all_rules

    plan = None
    host = Host.from_environment()
    if chosen.stack != options.DEFAULT_STACK or chosen.stack.exists():
        plan = open_stack(chosen).plan()
    return Known(rules=all_rules(host), plugins=host.plugins(), plan=plan)
