"""A launch: every flag, variable and file with who set it and why."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import Entries, columns, heading, indented, reason
from optistack.launch import FrontLaunch, Launch, LaunchArgument, LaunchFile, LaunchVariable
from optistack.plan.plan import FlagCheck, Plan
from optistack.secrets import shown

Part = LaunchArgument | LaunchVariable | LaunchFile


def launch_view(plan: Plan, *, wide: bool) -> Iterator[RenderableType]:
    """The first replica's launch in full; of the others what differs: the GPUs. Then the front's, where there is one.

    A flag that carries a setting names it, for the reasons stand there; in a pipe they are repeated.
    """
    launch = plan.launches[0]
    yield heading("Launch", f"{' '.join(('python', *launch.command))}{_place(plan)}")
    yield from _parts(launch, wide=wide)
    yield indented(_checked(plan.flag_check))
    if plan.front is not None:
        yield Text()
        yield heading("Front", f"{' '.join(('python', *plan.front.command))}, {_behind(plan)}")
        yield from _parts(plan.front, wide=wide)


def _behind(plan: Plan) -> str:
    return f"before {len(plan.launches)} replicas" if len(plan.launches) > 1 else "before the one replica"


def _parts(launch: Launch | FrontLaunch, *, wide: bool) -> Iterator[RenderableType]:
    parts: list[Part] = [*launch.arguments, *launch.variables, *launch.files]
    if wide:
        entries = Entries(wide=True)
        for part in parts:
            reasons = [reason(part.setting, part.why, reference=part.reference)]
            entries.add([_word(part), Text(part.source, "cyan")], reasons)
        yield from entries.render()
    else:
        table = columns(50, None, 100)
        for part in parts:
            table.add_row(_word(part), Text(part.source, "cyan"), reason(part.setting or part.why))
        yield indented(table)


def _word(part: Part) -> Text:
    if isinstance(part, LaunchArgument):
        return Text.assemble((part.flag, "bold"), f" {shown(part.flag, part.value)}" if part.value is not None else "")
    if isinstance(part, LaunchVariable):
        return Text.assemble((part.name, "bold green"), f"={shown(part.name, part.value)}")
    return Text.assemble((part.name, "bold magenta"), f" {len(part.content.encode()):,} bytes")


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


def _checked(check: FlagCheck) -> Text:
    if not check.against:
        return Text(f"Flags are not checked: {check.unchecked}.", style="dim")
    if check.problems:
        return Text("\n".join(check.problems), style="bold red")
    return Text(f"Every flag is known to {check.against}.", style="dim")
