"""``optistack apply``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optistack.cli import options
from optistack.cli.commands import new_app

if TYPE_CHECKING:
    from optistack.apply.start import Attached
    from optistack.cli.ready import Ready
    from optistack.plan.plan import Plan
    from optistack.verify.receipt import Receipt

app = new_app()


@app.command()
def apply(
    stack: options.Stack = options.DEFAULT_STACK,
    backend: options.Backend = None,
    node: options.Node = None,
    engine_python: options.EnginePython = None,
    engine_version: options.EngineVersion = None,
    plugin: options.Plugins = None,
    no_plugin: options.Without = None,
    setting: options.Set = None,
    engine_arg: options.EngineArgs = None,
    allow_degraded: options.AllowDegraded = False,
    lock: Annotated[
        Path | None, typer.Option("--lock", metavar="FILE", help="Apply this lock file as it is, no stack file.")
    ] = None,
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Do not ask the engine first what it makes of the launch.")
    ] = False,
    accept_overrides: Annotated[
        bool, typer.Option("--accept-overrides", help="Start it even if the engine changes what was planned.")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until Ctrl-C, which stops the engine.")
    ] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not check what took effect.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the engine running when a check fails.")] = False,
    json: options.Json = False,
) -> None:
    """Start the engine with the stack and prove what took effect.

    Asks the engine's own argument resolution first, and stops where that changes what was planned. Starts every
    replica, and the router before them if the stack has one, and waits until all of them serve. Then reads back every
    setting and lets the plugins probe it, and names the rules that fired as `degraded`. When a check fails, the engine
    is stopped and the exit code is 1; when it does not come up, its own reason is shown and the code is 3.
    The key of an engine that asks for one is read from OPTISTACK_API_KEY.
    """
    from optistack.apply.start import attached, end_error
    from optistack.apply.state import Phase
    from optistack.cli import screen
    from optistack.cli.interrupts import told_at_once
    from optistack.cli.ready import from_lock, from_stack
    from optistack.cli.receipts import failure
    from optistack.errors import CheckFailedError
    from optistack.plan.deploy import check_room, check_start, deployment_of
    from optistack.preflight import require_as_planned

    chosen = options.choice(stack, backend, node, engine_python, engine_version, plugin, no_plugin, setting, engine_arg)
    with told_at_once(), screen.ScreenProgress() as progress:
        progress.step("Planning")
        if lock:
            ready = from_lock(lock, chosen, progress, preflight=not no_preflight, check=check_room)
        else:
            ready = from_stack(
                chosen, progress, allow_degraded=allow_degraded, preflight=not no_preflight, check=check_room
            )
        plan = ready.plan
        if plan.preflight is not None:
            require_as_planned(plan.preflight, accept_overrides=accept_overrides)
        check_start(plan, ready.host, ready.python)
        spec = deployment_of(plan, ready.python, ready.engine_env)
        progress.step(f"Starting {plan.engine.backend} {plan.engine.version}")
        with attached(spec, on_progress=lambda now: progress.detail(now.log_line)) as live:
            receipts: list[Receipt] = []
            if not no_verify:
                progress.step("Checking what took effect")
                receipts = _verify(live, ready)
            progress.close()
            passed = all(receipt.passed for receipt in receipts)
            stays = passed or keep
            if stays and not foreground:
                live.commit()  # before anything is said about where it serves
            _show(live, plan, receipts, stays=stays, json=json)
            if stays and foreground:
                screen.note("Ctrl-C stops it.")
                if live.wait().phase is Phase.FAILED:
                    raise end_error(live.deployment)
    if not passed:
        screen.print_error(
            failure(receipts, "the plan"),
            f"`optistack down {spec.name}` stops it." if keep else "It was stopped; --keep leaves it running.",
        )
        raise typer.Exit(CheckFailedError.exit_code)


CRASH_NOTICED_S = 2.0
"""From an engine that no longer answers to its supervisor's word of why."""


def _verify(live: Attached, ready: Ready) -> list[Receipt]:
    """A receipt for each replica and the front, saved beside the deployment.

    Raises EngineStartError when an engine dies meanwhile: its own reason says more than a check that found nobody.
    """
    from optistack.cli.receipts import save_receipts
    from optistack.errors import OptistackError

    try:
        receipts = _receipts(live, ready)
    except OptistackError:
        live.check(patience_s=CRASH_NOTICED_S)
        raise
    if not all(receipt.passed for receipt in receipts):
        live.check(patience_s=CRASH_NOTICED_S)
    save_receipts(receipts, live.deployment.folder.receipt_file)
    return receipts


def _receipts(live: Attached, ready: Ready) -> list[Receipt]:
    import os
    from contextlib import ExitStack

    from optistack.verify.endpoint import Endpoint
    from optistack.verify.front import RunningFront, verify_front
    from optistack.verify.verify import verify

    plan, receipts = ready.plan, []
    api_key = os.environ.get(options.API_KEY_VARIABLE)
    with ExitStack() as opened:
        processes = live.deployment.spec.processes
        endpoints = [opened.enter_context(Endpoint(process.url, api_key=api_key)) for process in processes]
        for launch, process, endpoint in zip(plan.launches, processes, endpoints, strict=False):
            parts = live.deployment.log_files(process.name)
            log = "".join(part.read_text(encoding="utf-8", errors="replace") for part in parts)
            receipts.append(verify(plan, endpoint, ready.host, ready.backend, log=log, replica=launch.replica))
        if plan.front is not None:
            *replicas, endpoint = endpoints
            front = RunningFront(endpoint, tuple(replicas), processes[-1].ports)
            receipts.append(verify_front(plan, front, ready.host))
    return receipts


def _show(live: Attached, plan: Plan, receipts: Sequence[Receipt], *, stays: bool, json: bool) -> None:
    from optistack.cli import screen
    from optistack.cli.views.rules import degraded, degraded_view

    deployment = live.deployment
    if json:
        screen.print_json(
            {
                "name": deployment.name,
                "endpoints": list(deployment.spec.endpoints),
                "running": stays,
                "log": str(deployment.folder.logs_dir),
                "degraded": [finding.model_dump(mode="json") for finding in degraded(plan)],
                "receipts": [receipt.model_dump(mode="json") for receipt in receipts],
            }
        )
        return
    from optistack.cli.views.receipt import receipt_view

    for receipt in receipts:
        screen.show(*receipt_view(receipt, wide=screen.is_pipe()))
    if lines := list(degraded_view(plan)):
        screen.show(*lines)
    if stays:
        print(f"{deployment.name} serves at {', '.join(deployment.spec.endpoints)}")
        screen.note(f"`optistack down {deployment.name}` stops it. Its log: {deployment.folder.logs_dir}")
