"""Verify a running engine against its plan: compare what it says with what was asked, then let the plugins probe it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from optistack.backend import Backend
from optistack.errors import CheckFailedError, OptistackError
from optistack.facts.node import GIB
from optistack.host import Host
from optistack.plan.plan import Plan
from optistack.settings import Value
from optistack.verify.endpoint import Endpoint, on_loopback
from optistack.verify.receipt import CheckResult, Observed, Receipt, Status


class Tolerance(NamedTuple):
    """Difference that still counts as kept: a share of what was asked, and bytes besides."""

    share: float
    slack_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.share:.0%}" + (f" and {self.slack_bytes / GIB:.1f} GiB" if self.slack_bytes else "")


TOLERANCES = {
    "budget.kv_tokens": Tolerance(0.02),
    "budget.weight_bytes": Tolerance(0.02, slack_bytes=GIB // 2),
    "tiers.2.capacity_bytes": Tolerance(0.03),
}
"""For figures that an engine rounds to its pages, buffers or digits. What an allocator keeps beside weights counts only
for a small model; experts loaded as FP8 and not as NVFP4 take 1.8 times as much, in BF16 3.6 times."""

NOT_THE_ENGINES = ("routing.",)
"""Settings that no engine knows about; the plugin that sets them proves them itself."""

ONLY_WITH = {"kv.draft_dtype": "speculation.draft_checkpoint"}
"""Settings that mean something only beside another one."""

NO_EVIDENCE = "the engine gives no evidence of this"


def verify(
    plan: Plan, endpoint: Endpoint, host: Host, backend: Backend, *, log: str | None = None, replica: int = 0
) -> Receipt:
    """The receipt for the engine at ``endpoint``.

    ``log`` is the engine's log when we have it; some settings are proven nowhere else. Raises InputError when nobody
    answers at the endpoint.
    """
    observed = dict(backend.observe(endpoint, log))
    results = [
        *_identity(plan, endpoint, observed),
        *compare_settings(plan, observed),
        *_budget(plan, observed, endpoint, replica),
        *_probes(plan, endpoint, host),
    ]
    version = observed.get("engine.version")
    return Receipt(
        stack=plan.spec.name,
        plan_hash=plan.hash(),
        backend=backend.name,
        engine_version=str(version.value) if version else "unknown",
        endpoint=endpoint.url,
        replica=replica,
        verified_at=datetime.now(UTC).isoformat(timespec="seconds"),
        results=tuple(results),
        dropped=plan.dropped,
    )


def _identity(plan: Plan, endpoint: Endpoint, observed: Mapping[str, Observed]) -> Iterator[CheckResult]:
    yield compare("engine.version", plan.engine.version, observed.get("engine.version"), "plan")
    if plan.spec.model.served_name:
        try:
            served = Observed(value=endpoint.model(), proof="/v1/models data[0].id")
        except CheckFailedError as error:
            served = Observed(value=None, proof=error.message)
        yield compare("model.served_name", plan.spec.model.served_name, served, "stack")


def compare_settings(plan: Plan, observed: Mapping[str, Observed]) -> Iterator[CheckResult]:
    """Every setting that a plugin or the stack file decided; of those that only fell back, what the engine shows."""
    for path, value in plan.stack.values():
        if not value.is_set or path.startswith(NOT_THE_ENGINES):
            continue
        if value.fallback and path not in observed:
            continue
        if path in ONLY_WITH and not plan.stack.get(ONLY_WITH[path]).is_set:
            continue
        asked = value.value
        if asked and path == "serving.max_running_requests":  # as the engine was told; a rule says where that is more
            asked = plan.spec.parallel.for_all_groups(asked)
        yield compare(path, asked, observed.get(path), promised_by(value))


def _budget(plan: Plan, observed: Mapping[str, Observed], endpoint: Endpoint, replica: int) -> Iterator[CheckResult]:
    yield compare("budget.kv_tokens", plan.budget.kv_tokens, observed.get("budget.kv_tokens"), "plan")
    weights = observed.get("budget.weight_bytes")
    if plan.budget.device == "cuda" or (weights is not None and weights.value is not None):
        line = compare("budget.weight_bytes", plan.budget.loaded_bytes, weights, "plan")
        others = ""
        if line.status is Status.FAIL and weights is not None and weights.whole_device:
            others = _sharing(plan, endpoint, replica)
        if others:
            why = f"{line.why}; {others}, and what the others took or gave back meanwhile is in it"
            line = line.model_copy(update={"status": Status.UNPROVEN, "why": why})
        yield line


def _sharing(plan: Plan, endpoint: Endpoint, replica: int) -> str:
    """That others are on the GPUs of an engine on this machine, in words; empty where nothing shows it."""
    from optistack.facts import gpu_users
    from optistack.facts.detect import visible_devices

    if not on_loopback(endpoint.url):
        return ""
    launch = next((launch for launch in plan.launches if launch.replica == replica), None)
    return gpu_users.sharing(visible_devices(launch.gpus) if launch is not None else "")


def _probes(plan: Plan, endpoint: Endpoint, host: Host) -> Iterator[CheckResult]:
    for use in plan.plugins:
        plugin = host.get(use.name)
        try:
            yield from host.call_many(plugin, "optistack_probe", CheckResult, plan=plan, endpoint=endpoint)
        except OptistackError as error:
            yield CheckResult(
                id=f"{use.name}/probe",
                promised_by=use.name,
                asked="its probe runs",
                engine_says="it could not run",
                proof=str(error),
                status=Status.FAIL,
            )


def promised_by(value: Value[Any]) -> str:
    """Who decided a setting."""
    return ", ".join(dict.fromkeys(origin.source for origin in value.wishes)) or "plan"


def compare(path: str, asked: Any, seen: Observed | None, promised: str) -> CheckResult:
    """One line: what was asked against what was observed, within the tolerance of ``path``."""
    tolerance = TOLERANCES.get(path)
    if seen is None or seen.value is None:
        status, says, proof = Status.UNPROVEN, "nothing", seen.proof if seen else NO_EVIDENCE
    else:
        status = Status.PASS if _same(asked, seen.value, tolerance) else Status.FAIL
        says, proof = _text(seen.value, path), seen.proof
    why = ""
    if tolerance is not None and seen is not None and isinstance(seen.value, int | float) and asked:
        why = f"{(seen.value - asked) / asked:+.2%} of the plan, {tolerance} allowed"
    return CheckResult(
        id=path, promised_by=promised, asked=_text(asked, path), engine_says=says, proof=proof, status=status, why=why
    )


def _same(asked: Any, seen: Any, tolerance: Tolerance | None) -> bool:
    if isinstance(asked, bool) or isinstance(seen, bool):
        return asked is seen
    if isinstance(asked, int | float) and isinstance(seen, int | float):
        share, slack_bytes = tolerance or Tolerance(0.0)
        return abs(seen - asked) <= share * abs(asked) + slack_bytes
    return str(asked) == str(seen)


def _text(value: Any, path: str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and path == "budget.weight_bytes":
        return f"{value / GIB:.2f} GiB"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
