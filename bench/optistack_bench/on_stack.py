"""``--stack``: the stack without its plugins, and every stack whole, are started, measured and taken down in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from optistack.apply.start import attached
from optistack.cli.options import Choice
from optistack.cli.ready import Ready, from_stack
from optistack.errors import InputError
from optistack.plan.deploy import check_start, deployment_of
from optistack_bench.load import Loop
from optistack_bench.result import Result
from optistack_bench.run import running
from optistack_bench.settings import Settings
from optistack_bench.target import Target

if TYPE_CHECKING:
    from optistack.engines.progress import Progress

BASELINE = "baseline"


def run_stacks(
    stacks: Sequence[Choice],
    settings: Settings,
    loops: Sequence[Loop],
    *,
    baseline: bool,
    allow_degraded: bool,
    out: Path | None,
    progress: Progress,
) -> Result:
    """Measure ``stacks`` in turn, and before them the first of them without its plugins.

    Everything is planned and held against this machine before anything is started. Raises PlanRefusedError for a plan
    that is refused, PlanRefusedError or InputError for one that cannot be started here, and EngineStartError when the
    first engine does not come up; nothing is left running.
    """
    progress.step("Planning")
    ready = [
        (name, from_stack(one, progress, allow_degraded=allow_degraded, preflight=True)) for name, one in _named(stacks)
    ]
    if baseline:
        names = tuple(use.name for use in ready[0][1].plan.plugins)
        without = dataclasses.replace(stacks[0], without=(*stacks[0].without, *names))
        plain = from_stack(without, progress, allow_degraded=allow_degraded, preflight=True)
        ready.insert(0, (BASELINE, plain))
    for _, one in ready:
        check_start(one.plan, one.host, one.python)
    with running(settings, out, dict.fromkeys((name for name, _ in ready), loops)) as run:
        for name, one in ready:
            progress.step(f"Starting {name}")
            with _deployed(name, one, progress) as target:
                run.measure(target, settings, loops, progress)
    return run.result


def _named(stacks: Sequence[Choice]) -> list[tuple[str, Choice]]:
    names = [one.stack.stem for one in stacks]
    for name in names:
        if names.count(name) > 1 or name == BASELINE:
            raise InputError(f"Two things are called {name!r} here.", fix="Give the stack files different names.")
    return list(zip(names, stacks, strict=True))


@contextmanager
def _deployed(name: str, ready: Ready, progress: Progress) -> Iterator[Target]:
    plan = ready.plan
    check_start(plan, ready.host, ready.python)  # again: a disk, for one, is fuller than before the last was measured
    spec = deployment_of(plan, ready.python, ready.engine_env)
    with attached(spec, on_progress=lambda now: progress.detail(now.log_line)) as live:
        processes = live.deployment.spec.processes
        engines = tuple(process.url for process in processes[: len(plan.launches)])
        routed = plan.front is not None
        yield Target(
            name,
            live.deployment.spec.endpoints[0] if routed else engines[0],
            engines,
            spread=() if routed else engines,
            gpus=max(1, plan.share.gpus) * len(engines),
            plan_hash=plan.hash(),
            planned_kv_tokens=plan.budget.kv_tokens * len(engines),
        )
