"""What the engine's own argument resolution makes of a launch, asked before anything is started.

An adapter's ``preflight`` runs that resolution in an environment of the engine and says what came out; here lies what
is the same for every engine: where to ask, which rules explain the answer, and what of it stops a launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from optistack.errors import PlanRefusedError
from optistack.rules import Severity

if TYPE_CHECKING:
    from optistack.backend import Backend
    from optistack.engines.progress import Progress
    from optistack.plan.plan import Plan
    from optistack.rules import Finding


class Verdict(StrEnum):
    """``not-run``: nothing could be asked; ``message`` says why."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    NOT_RUN = "not-run"


class ResolvedChange(BaseModel):
    """A value that the engine would change.

    ``flag``     the flag as the launch has it, ``""`` where the launch leaves a promised value to the engine
    ``setting``  the path of the setting that it carries, ``""`` for none
    ``asked``, ``becomes``  in the engine's words for a flag, in optistack's for a setting without one
    ``source``   which part of the engine's resolution says so, ``""`` where it does not tell
    ``explained_by``  ids of the rules of the plan that speak of it
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    flag: str = ""
    setting: str = ""
    asked: str
    becomes: str
    source: str = ""
    explained_by: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.flag or self.setting

    @property
    def about(self) -> str:
        return f"{self.flag} {self.setting}"


class Preflight(BaseModel):
    """The engine's verdict.

    ``message``       the engine's own words of a rejection, or why nothing was asked
    ``explained_by``  ids of the rules of the plan that explain a rejection
    ``unresolved``    what cannot be resolved here: a field and why, one sentence each
    ``against``       which engine was asked: ``sglang 0.5.23 in /path/bin/python``
    ``gpu_faked``     the GPU that stood in, ``""`` for none
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    verdict: Verdict
    message: str = ""
    explained_by: tuple[str, ...] = ()
    changes: tuple[ResolvedChange, ...] = ()
    unresolved: tuple[str, ...] = ()
    against: str = ""
    gpu_faked: str = ""


def run_preflight(plan: Plan, backend: Backend, progress: Progress) -> Preflight:
    """What the engine makes of the first launch of ``plan``, with the rules of the plan that explain it.

    Asked is the engine of the plan, or an environment of the same engine and version that optistack installed (for
    another device: the adapter fakes the plan's). Raises InputError for an environment that is broken.
    """
    found = _environment(plan)
    if found is None:
        missing = f"no {plan.engine.backend} {plan.engine.version} is installed here to ask"
        return Preflight(verdict=Verdict.NOT_RUN, message=missing)
    python, env = found
    progress.step(f"Asking {plan.engine.backend} {plan.engine.version} what it makes of the launch")
    answer = backend.preflight(plan, python, env)
    if answer is None:
        return Preflight(verdict=Verdict.NOT_RUN, message=f"the adapter for {backend.name} has no preflight")
    return explained(answer, plan.findings)


def require_as_planned(preflight: Preflight, *, accept_overrides: bool) -> None:
    """Raise PlanRefusedError when the engine resolves to something else than planned."""
    if not preflight.changes or accept_overrides:
        return
    first = preflight.changes[0]
    more = len(preflight.changes) - 1
    others = f" ({more} more: {', '.join(change.name for change in preflight.changes[1:])})" if more else ""
    by = f" (its {first.source})" if first.source else ""
    raise PlanRefusedError(
        f"The engine would change what was planned: {first.name} from {first.asked} to {first.becomes}{by}{others}.",
        fix="Plan what it resolves to, or start it all the same with --accept-overrides.",
    )


def explained(answer: Preflight, findings: Iterable[Finding]) -> Preflight:
    """``answer`` with the ids of the findings that speak of the same flags or settings."""
    told = tuple(findings)

    def matching(about: str, already: tuple[str, ...], *, errors: bool) -> tuple[str, ...]:
        kind = [finding for finding in told if (finding.severity is Severity.ERROR) or not errors]
        return already or tuple(f.rule for f in kind if names(f"{f.message} {f.fix}") & names(about))

    changes = tuple(
        change.model_copy(update={"explained_by": matching(change.about, change.explained_by, errors=False)})
        for change in answer.changes
    )
    rejected = answer.verdict is Verdict.REJECTED
    by = matching(answer.message, answer.explained_by, errors=True) if rejected else ()
    return answer.model_copy(update={"changes": changes, "explained_by": by})


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_.][A-Za-z0-9]+)+")


def names(text: str) -> frozenset[str]:
    """Flags, fields and setting paths that ``text`` speaks of, spelled alike: ``--page-size`` as ``page-size``."""
    return frozenset(word.lower().replace("_", "-") for word in _NAME.findall(text))


def _environment(plan: Plan) -> tuple[Path, dict[str, str]] | None:
    from optistack.engines.environment import installed_engines

    engine = plan.engine
    here = [environment for environment in installed_engines() if environment.backend == engine.backend]
    if engine.python is not None:
        env = next((environment.env for environment in here if str(environment.python) == engine.python), {})
        return Path(engine.python), env
    same = next((environment for environment in here if environment.version == engine.version), None)
    return None if same is None else (same.python, same.env)
