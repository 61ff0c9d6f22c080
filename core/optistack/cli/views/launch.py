"""A launch: every flag, variable and file with who set it and why."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import columns, heading, indented, reason
from optistack.launch import Launch, LaunchArgument, LaunchFile, LaunchVariable
from optistack.plan.plan import FlagCheck, Plan


def launch_view(plan: Plan, *, wide: bool) -> Iterator[RenderableType]:
    """The first replica's launch in full; of the others what differs: the GPUs.

    A flag that carries a setting names it, for the reasons stand there; in a pipe they are repeated.
    """
    launch = plan.launches[0]
    yield heading("Launch", f"{' '.join(('python', *launch.command))}{_place(plan)}")
    table = columns(None if wide else 50, None, None if wide else 100)
    for argument in launch.arguments:
        word = Text.assemble((argument.flag, "bold"), f" {argument.value}" if argument.value is not None else "")
        table.add_row(word, Text(argument.source, "cyan"), _why(argument, wide=wide))
    for variable in launch.variables:
        word = Text.assemble((variable.name, "bold green"), f"={variable.value}")
        table.add_row(word, Text(variable.source, "cyan"), _why(variable, wide=wide))
    for file in launch.files:
        word = Text.assemble((file.name, "bold magenta"), f" {len(file.content.encode()):,} bytes")
        table.add_row(word, Text(file.source, "cyan"), _why(file, wide=wide))
    yield indented(table)
    yield indented(_checked(plan.flag_check, launch))


def _place(plan: Plan) -> str:
    places = [_gpus(launch) for launch in plan.launches]
    if len(places) == 1:
        return f", {places[0]}" if places[0] else ""
    return f", {len(places)} replicas" + (f" ({'; '.join(places)})" if places[0] else "")


def _gpus(launch: Launch) -> str:
    return (
        f"GPUs {launch.gpus[0]} to {launch.gpus[-1]}"
        if len(launch.gpus) > 1
        else f"GPU {launch.gpus[0]}"
        if launch.gpus
        else ""
    )


def _why(part: LaunchArgument | LaunchVariable | LaunchFile, *, wide: bool) -> Text:
    if wide:
        return reason(part.setting, part.why, reference=part.reference)
    return reason(part.setting or part.why)


def _checked(check: FlagCheck, launch: Launch) -> Text:
    if not check.against:
        return Text(f"Flags are not checked: {launch.backend} {launch.version} is not installed here.", style="dim")
    if check.problems:
        return Text("\n".join(check.problems), style="bold red")
    return Text(f"Every flag is known to {check.against}.", style="dim")
