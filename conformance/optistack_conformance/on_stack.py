"""``--stack``: the stack without its plugins is the baseline; then it is started whole and put to the suite."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optistack.apply.start import attached
from optistack.plan.deploy import check_start, deployment_of
from optistack_conformance.client import Client
from optistack_conformance.reference import measure_reference, save_reference
from optistack_conformance.report import Report
from optistack_conformance.runner import run_suite
from optistack_conformance.selection import Selection

if TYPE_CHECKING:
    from optistack.cli.ready import Ready
    from optistack.engines.progress import Progress

EIGHT_BITS = ("fp8", "int8")


def run_stack(
    whole: Ready, plain: Ready, settings: dict[str, Any], *, junit: Path | None, progress: Progress
) -> Report:
    """Run the suite on ``whole`` against ``plain``, one engine after the other, so that one machine does.

    ``settings`` are fields of ``Selection``; what the two plans say themselves is filled in. Raises InputError or
    PlanRefusedError, before anything is started, when this machine cannot start one of them, and EngineStartError when
    an engine does not come up. Nothing is left running.
    """
    for ready in (whole, plain):
        check_start(ready.plan, ready.host, ready.python)
    plan = whole.plan
    settings = {"plugins": tuple(use.name for use in plan.plugins), **claims(whole, plain), **settings}
    settings["plan_hash"] = plan.hash()
    checkpoint = Path(plan.model.source).expanduser()
    if (checkpoint / "tokenizer.json").is_file():
        settings.setdefault("checkpoint", str(checkpoint))
    with tempfile.TemporaryDirectory(prefix="optistack-baseline-") as folder:
        recorded = Path(folder, "baseline.json")
        with _running(plain, "the baseline", progress) as url:
            progress.step("Measuring the baseline")
            selection = Selection(endpoint=url, **settings)
            key = os.environ.get(selection.api_key_variable)
            with Client(url, api_key=key, timeout_s=selection.timeout_s) as client:
                save_reference(measure_reference(client, selection), recorded)
        with _running(whole, "the stack", progress) as url:
            progress.step("Running the cases")
            selection = Selection(endpoint=url, baseline_file=str(recorded), **settings)
            return run_suite(selection, junit=junit, progress=progress.detail)


def claims(whole: Ready, plain: Ready) -> dict[str, Any]:
    """What the plans say about their difference: whether KV gets narrower, and whether a tier below is added."""
    ours, theirs = (str(ready.plan.stack.kv.dtype.value) for ready in (whole, plain))
    narrower = ours.startswith(EIGHT_BITS) and not theirs.startswith(EIGHT_BITS)
    return {"lossy": "fp8-kv" if narrower else None, "kv_dtype": ours, "tier_expected": bool(whole.plan.stack.tiers)}


@contextmanager
def _running(ready: Ready, what: str, progress: Progress) -> Iterator[str]:
    check_start(ready.plan, ready.host, ready.python)
    spec = deployment_of(ready.plan, ready.python, ready.engine_env)
    progress.step(f"Starting {what}")
    with attached(spec, on_progress=lambda now: progress.detail(now.log_line)) as live:
        yield live.deployment.spec.endpoints[0]
