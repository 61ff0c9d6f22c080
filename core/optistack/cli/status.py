"""``optistack status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from optistack.cli import options
from optistack.cli.commands import new_app

if TYPE_CHECKING:
    from optistack.apply.deployment import Deployment

app = new_app()

DAMAGED = "damaged"
"""In the place of a phase: what became of it cannot be read."""


@app.command()
def status(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Which; every one without.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Those that have ended too.")] = False,
    json: options.Json = False,
) -> None:
    """List the running deployments.

    Each with its phase, where it serves, which of its processes have ended, and what its receipt says. Those that are
    named are shown whatever they do.
    """
    from optistack.apply.deployment import find, list_damaged, list_deployments
    from optistack.cli import screen
    from optistack.paths import check_deployments_dir

    check_deployments_dir()

    entries = [
        _entry(deployment) for deployment in (map(find, names) if names else [*list_deployments(), *list_damaged()])
    ]
    shown = [entry for entry in entries if everything or names or entry["running"] or entry["phase"] == DAMAGED]
    if json:
        screen.print_json({"deployments": shown})
        return
    from optistack.cli.views.status import status_view

    ended = [entry for entry in entries if entry not in shown]
    screen.show(*status_view(shown, ended=ended, wide=screen.is_pipe()))


def _entry(deployment: Deployment) -> dict[str, Any]:
    from optistack.apply.state import Phase
    from optistack.cli.receipts import failed_checks, read_receipts
    from optistack.cli.views.receipt import counts
    from optistack.errors import InputError

    try:
        state = deployment.state
    except InputError as error:
        return _damaged(deployment, str(error))
    try:
        spec = deployment.spec
        endpoints, plan_hash = list(spec.endpoints), spec.plan_hash
        urls = {process.name: process.url for process in spec.processes}
    except InputError:  # of another version of optistack: it can still be seen and stopped
        endpoints, plan_hash, urls = [], "", {}
    receipts = read_receipts(deployment.folder.receipt_file)
    return {
        "name": deployment.name,
        "id": state.id,
        "supervisor_pid": state.supervisor.pid if state.supervisor else None,
        "phase": state.phase.value,
        "running": state.phase in (Phase.STARTING, Phase.READY, Phase.STOPPING),
        "reason": state.reason,
        "removed": list(state.removed),
        "started_at": state.started_at.isoformat(timespec="seconds"),
        "endpoints": endpoints,
        "plan_hash": plan_hash,
        "processes": [
            {
                "name": process.name,
                "url": urls.get(process.name),
                "pid": process.process.pid if process.process and process.exit_code is None else None,
                "ready": process.ready,
                "exit_code": process.exit_code,
                "reason": process.reason,
            }
            for process in state.processes
        ],
        "receipts": [{"passed": receipt.passed, "counts": counts(receipt)} for receipt in receipts],
        "failed": failed_checks(receipts),
        "log": str(deployment.folder.logs_dir),
    }


def _damaged(deployment: Deployment, why: str) -> dict[str, Any]:
    unknown = dict.fromkeys(("id", "supervisor_pid", "started_at"))
    lists = ("removed", "endpoints", "processes", "receipts", "failed")
    nothing: dict[str, Any] = {"plan_hash": "", **{name: [] for name in lists}}
    told = {"name": deployment.name, "phase": DAMAGED, "running": deployment.locked(), "reason": why}
    return {**unknown, **nothing, **told, "log": str(deployment.folder.logs_dir)}
