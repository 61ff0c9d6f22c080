"""From the shared options to a plan: what every command that works on a stack begins with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from optistack.backend import Backend, backend_names
from optistack.cli.options import Choice
from optistack.engines.progress import SILENT, Progress
from optistack.errors import InputError
from optistack.host import Host
from optistack.plan.build import build_plan, get_backend_for
from optistack.plan.plan import Plan
from optistack.stack.loader import load_stack
from optistack.stack.spec import StackSpec
from optistack.verify.endpoint import Endpoint


@dataclass(frozen=True)
class Workbench:
    """A loaded stack with the plugins and the adapter that it is planned with.

    ``version``  the engine's that it is planned for, where the stack names none and one was seen running
    """

    spec: StackSpec
    host: Host
    backend: Backend
    version: str | None = None

    def for_engine_at(self, endpoint: Endpoint) -> Workbench:
        """The same, planned for the engine version that runs at ``endpoint``, unless the stack names one.

        Raises InputError when nobody answers there, or somebody who is no engine.
        """
        seen = self.backend.observe(endpoint, None).get("engine.version")
        if (seen is None or seen.value is None) and not endpoint.listed():
            raise InputError(
                f"What answers at {endpoint.url} is no {self.backend.name}: it says no version and lists no models.",
                fix="Give the engine's address without a path, like http://127.0.0.1:8000, and its key if it has one.",
            )
        other = self._other_engine_at(endpoint)
        if other is not None:
            raise InputError(
                f"What answers at {endpoint.url} is {other}, and the stack is for {self.backend.name}.",
                fix=f"Give --backend {other}, or the address of a {self.backend.name}.",
            )
        engine = self.spec.engine
        if seen is None or seen.value is None or engine.version is not None or engine.python is not None:
            return self
        return dataclasses.replace(self, version=str(seen.value))

    def _other_engine_at(self, endpoint: Endpoint) -> str | None:
        """The backend whose engine is at ``endpoint``, by the families of its metrics and its routes, if it is not
        this one. Both serve ``/v1/models``, and neither needs its metrics on: where nothing tells, nothing is said."""
        names = {sample.name.partition(":")[0] for sample in endpoint.metrics().samples if ":" in sample.name}
        others = [name for name in backend_names() if name != self.backend.name]
        if self.backend.name not in names:
            told = next((name for name in others if name in names), None)
            if told is not None:
                return told
        owner = str(endpoint.listed().get("owned_by", ""))
        return owner if owner in others else None

    def plan(self, *, allow_degraded: bool = False, preflight: bool = False, progress: Progress = SILENT) -> Plan:
        spec = self.spec
        if self.version is not None:
            spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"version": self.version})})
        plan = build_plan(
            spec, self.host, self.backend, allow_degraded=allow_degraded, preflight=preflight, progress=progress
        )
        # The stack as it was given: with another engine version in it, the same plan would have another hash.
        return plan.model_copy(update={"spec": self.spec})


def open_stack(choice: Choice, *, otherwise: str | None = None) -> Workbench:
    """Load the stack that ``choice`` names. Raises InputError for whatever is wrong with it.

    ``otherwise``  the backend where neither the stack nor ``choice`` names one
    """
    host = Host.from_environment(disable=choice.without)
    spec = load_stack(choice.stack, host, choice.overrides)
    return Workbench(spec, host, get_backend_for(spec, spec.backend or otherwise))
