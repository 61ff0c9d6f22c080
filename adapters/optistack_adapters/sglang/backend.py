"""``backend``: SGLang as optistack sees it. See :class:`optistack.backend.Backend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optistack_adapters import snapshots
from optistack_adapters.sglang import versions

if TYPE_CHECKING:
    from optistack.backend import RenderRequest
    from optistack.context import EngineFacts
    from optistack.facts.model import ModelFacts
    from optistack.facts.node import NodeFacts
    from optistack.launch import Launch
    from optistack.memory.request import EngineReserves
    from optistack.plan.plan import Plan
    from optistack.preflight import Preflight
    from optistack.rules import Rule
    from optistack.settings import Serving, Settings
    from optistack.settings.resolved import ResolvedStack
    from optistack.stack.spec import StackSpec
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.receipt import Observed


class SGLangBackend:
    """The parts of the adapter behind one object. Each is imported when it is used."""

    name = "sglang"
    distributions = ("sglang",)
    supported = versions.SUPPORTED
    default_version = versions.DEFAULT
    snapshots: Path | None = snapshots.FOLDER

    def facts(self, version: str, device: str) -> EngineFacts:
        from optistack_adapters.sglang.traits import engine_facts

        return engine_facts(version, device)

    def defaults(
        self, spec: StackSpec, model: ModelFacts, node: NodeFacts, engine: EngineFacts
    ) -> Sequence[Settings | Serving]:
        from optistack_adapters.sglang.defaults import defaults

        return defaults(spec, model, node, engine)

    def reserves(
        self, stack: ResolvedStack, model: ModelFacts, node: NodeFacts, engine: EngineFacts, spec: StackSpec
    ) -> EngineReserves:
        from optistack_adapters.sglang.reserves import reserves

        return reserves(stack, model, node, engine, spec)

    def render(self, request: RenderRequest) -> Launch:
        from optistack_adapters.sglang.render import render

        return render(request)

    def rules(self) -> Sequence[Rule]:
        from optistack_adapters.sglang.rules import RULES

        return RULES

    def preflight(self, plan: Plan, python: Path, env: Mapping[str, str]) -> Preflight | None:
        from optistack_adapters.sglang.preflight import preflight

        return preflight(plan, python, env)

    def observe(self, endpoint: Endpoint, log: str | None) -> Mapping[str, Observed]:
        from optistack_adapters.sglang.observe import observe

        return observe(endpoint, log)


backend = SGLangBackend()
