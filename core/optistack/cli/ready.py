"""A plan that is ready to be started, from a stack file or from a lock file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optistack.backend import Backend, get_backend
from optistack.cli.options import Choice
from optistack.cli.views.rules import refusal
from optistack.cli.workbench import open_stack
from optistack.engines.environment import installed_engines
from optistack.engines.progress import Progress
from optistack.errors import InputError, PlanRefusedError
from optistack.facts.checkpoint import load_model
from optistack.host import Host
from optistack.plan.engine import find_engine
from optistack.plan.flags import check_launch
from optistack.plan.lock import check_checkpoint, check_plugins, read_lock
from optistack.plan.plan import Plan


@dataclass(frozen=True)
class Ready:
    """``python`` is the engine's, None when it is not on this machine; ``engine_env`` what it needs in any case."""

    plan: Plan
    host: Host
    backend: Backend
    python: str | None
    engine_env: dict[str, str]


def _no_check(plan: Plan) -> None:
    pass


def from_stack(
    chosen: Choice,
    progress: Progress,
    *,
    allow_degraded: bool,
    preflight: bool,
    check: Callable[[Plan], None] = _no_check,
) -> Ready:
    """Plan the stack. ``check`` raises what need not wait for the preflight, which may last half a minute.

    Raises PlanRefusedError when the plan is refused.
    """
    workbench = open_stack(chosen)
    plan = workbench.plan(allow_degraded=allow_degraded, progress=progress)
    _require_accepted(plan)
    check(plan)
    python = plan.engine.python
    if preflight:
        plan = _asked(plan, plan.engine.python, workbench.backend, progress)
    env = next((engine.env for engine in installed_engines() if str(engine.python) == python), {})
    return Ready(plan, workbench.host, workbench.backend, python, env)


def from_lock(
    path: Path, chosen: Choice, progress: Progress, *, preflight: bool, check: Callable[[Plan], None] = _no_check
) -> Ready:
    """The plan in a lock file, held against what is here: checkpoint, plugins, engine.

    Where the engine is may differ from machine to machine, so ``--engine-python`` is the one option that goes with a
    lock file. Raises InputError when something is not what the lock was made with.
    """
    if chosen != Choice(engine_python=chosen.engine_python):
        raise InputError(
            "A lock file is applied as it is.", fix="Leave out --stack and every option that changes it, or plan again."
        )
    plan = read_lock(path)
    model = plan.spec.model
    config = Path(model.config) if model.config else None
    try:
        facts = load_model(model.checkpoint, config_fallback=config, revision=model.revision)
    except InputError as error:
        raise InputError(
            f"{path} is for the checkpoint {model.checkpoint}, which cannot be read here: {error.message}",
            fix="Put it where the lock file says, or plan again on this machine.",
        ) from error
    check_checkpoint(plan, facts, path)
    host = Host.from_environment()
    check_plugins(plan, host, path)
    backend = get_backend(plan.engine.backend)
    python = chosen.python or plan.spec.engine.python
    # Where a Python is named, its version is held against the lock's below, in words about the lock.
    version = None if python else plan.engine.version
    wanted = plan.spec.engine.model_copy(update={"python": python, "version": version})
    engine = find_engine(plan.spec.model_copy(update={"engine": wanted}), backend, plan.node.device)
    if engine.facts.version != plan.engine.version:
        raise InputError(
            f"{path} is for {backend.name} {plan.engine.version}; {python} has {engine.facts.version}.",
            fix="Name the right one with --engine-python, or plan again.",
        )
    problems = check_launch(plan.launches[0], engine).problems
    if problems:
        raise PlanRefusedError(f"The engine here does not take this launch: {problems[0]}", fix="Plan again.")
    check(plan)
    if preflight:
        plan = _asked(plan, engine.facts.python, backend, progress)
    return Ready(plan, host, backend, engine.facts.python, engine.env)


def _asked(plan: Plan, python: str | None, backend: Backend, progress: Progress) -> Plan:
    """``plan`` with what the engine of ``python`` says about it; a lock may have been made where it lies elsewhere.

    Raises PlanRefusedError when it rejects the launch.
    """
    from optistack.preflight import run_preflight

    there = plan.model_copy(update={"engine": plan.engine.model_copy(update={"python": python})})
    asked = plan.model_copy(update={"preflight": run_preflight(there, backend, progress)})
    _require_accepted(asked)
    return asked


def _require_accepted(plan: Plan) -> None:
    if plan.refused:
        message, fix = refusal(plan)
        raise PlanRefusedError(message, fix=f"{fix} `optistack plan` shows the whole plan.".strip())
