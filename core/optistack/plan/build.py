"""Build a plan: the one function from a stack file to everything that will be done. Pure: no GPU, network or engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optistack
from optistack.backend import Backend, RenderRequest
from optistack.context import PlanContext
from optistack.engines.progress import SILENT, Progress
from optistack.errors import InputError, PlanRefusedError
from optistack.facts.checkpoint import load_model
from optistack.facts.model import ModelFacts
from optistack.facts.node import NodeFacts, load_node
from optistack.host import Host, Plugin
from optistack.launch import Launch
from optistack.memory import BudgetRequest, MemoryBudget, budget
from optistack.memory.kv import attention_ranks
from optistack.plan.core_rules import CORE_RULES
from optistack.plan.engine import Engine, find_engine
from optistack.plan.flags import check_launch
from optistack.plan.front import behind_front, for_replicas, with_front
from optistack.plan.plan import Plan, PluginUse
from optistack.plan.wishes import plan_wishes, stack_wishes
from optistack.resolve import parse_options, resolve
from optistack.rules import Finding, Rule, RuleContext, evaluate
from optistack.settings.resolved import Contribution, ResolvedStack
from optistack.stack.spec import StackSpec
from optistack.verify.receipt import Dropped


def build_plan(
    spec: StackSpec,
    host: Host,
    backend: Backend,
    *,
    allow_degraded: bool = False,
    preflight: bool = False,
    progress: Progress = SILENT,
) -> Plan:
    """The plan for ``spec`` on ``backend``.

    Paths in ``spec`` are absolute by now. A plan that cannot work is returned with what refuses it (``plan.refused``)
    as long as it can be rendered at all.

    With ``allow_degraded``, plugins that only lack something on this engine or device are left out, and the plan says
    so. With ``preflight``, the engine's own resolution is asked what it makes of the launch.

    Raises InputError for wrong input and PlanRefusedError where nothing can be rendered.
    """
    model = load_model(spec.model.checkpoint, config_fallback=_path(spec.model.config), revision=spec.model.revision)
    node = load_node(spec.node)
    engine = find_engine(spec, backend, node.device, progress=progress)
    plugins = host.select(spec.plugins)
    dropped: list[Dropped] = []
    while True:
        attempt = _Attempt(spec, host, backend, model, node, engine, plugins, tuple(dropped))
        victims: list[Dropped] = []
        try:
            plan = attempt.plan()
        except PlanRefusedError as error:
            if not (allow_degraded and error.rule and error.plugin):
                raise
            victims = [Dropped(plugin=error.plugin, rule=error.rule, message=error.message)]
        else:
            victims = _droppable(plan.errors, plugins) if allow_degraded else []
            if not victims:
                return _asked(plan, backend, progress) if preflight else plan
        gone = {victim.plugin for victim in victims}
        plugins = [plugin for plugin in plugins if plugin.name not in gone]
        dropped.extend(victims)


def _asked(plan: Plan, backend: Backend, progress: Progress) -> Plan:
    from optistack.preflight import run_preflight

    return plan.model_copy(update={"preflight": run_preflight(plan, backend, progress)})


def budget_request(spec: StackSpec, host: Host, backend: Backend) -> BudgetRequest:
    """What :func:`build_plan` would ask the memory budget, also for layouts that do not fit: nothing is rendered.

    Raises what build_plan raises while it resolves.
    """
    model = load_model(spec.model.checkpoint, config_fallback=_path(spec.model.config), revision=spec.model.revision)
    node = load_node(spec.node)
    engine = find_engine(spec, backend, node.device)
    attempt = _Attempt(spec, host, backend, model, node, engine, host.select(spec.plugins), ())
    return attempt.budget_request(attempt.resolve())


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _droppable(errors: Sequence[Finding], plugins: Sequence[Plugin]) -> list[Dropped]:
    """The plugins that the errors allow to be left out, each with the first rule that asks for it."""
    victims: dict[str, Dropped] = {}
    for finding in errors:
        for plugin in plugins:
            if finding.domain is not None and plugin.info.domain is finding.domain:
                dropped = Dropped(plugin=plugin.name, rule=finding.rule, message=finding.message)
                victims.setdefault(plugin.name, dropped)
    return list(victims.values())


def _check_heads(model: ModelFacts, spec: StackSpec) -> None:
    """Raise PlanRefusedError where the attention heads do not divide over the ranks that share them, InputError where
    the ranks do not divide. Every engine refuses that, and a plugin that meets it first would blame its own part."""
    tensor, groups = spec.parallel.tensor, spec.parallel.attention_data
    heads = model.attention.heads
    if heads % attention_ranks(tensor, groups) == 0:
        return
    sizes = [str(size * groups) for size in range(1, min(heads, 64) + 1) if heads % size == 0]
    raise PlanRefusedError(
        f"parallel.tensor is {tensor}, and the {heads} attention heads of {model.source} do not divide over "
        f"{tensor // groups} ranks.",
        fix=f"Set parallel.tensor to one of {', '.join(sizes)}.",
    )


class _Attempt:
    """One try at a plan, with a given set of plugins."""

    def __init__(
        self,
        spec: StackSpec,
        host: Host,
        backend: Backend,
        model: ModelFacts,
        node: NodeFacts,
        engine: Engine,
        plugins: Sequence[Plugin],
        dropped: tuple[Dropped, ...],
    ) -> None:
        self.spec, self.host, self.backend = spec, host, backend
        self.model, self.node, self.engine = model, node, engine
        self.plugins, self.dropped = plugins, dropped
        self.checkpoints: dict[str, Path] = {}
        self.options = {plugin.name: parse_options(plugin, spec.plugins[plugin.name]) for plugin in plugins}
        self.shares = node.split(spec.parallel.replicas, spec.parallel.tensor)

    def plan(self) -> Plan:
        stack = self.resolve()
        share = self.shares[0]
        memory = budget(self.budget_request(stack))
        launches = self._launches(stack, memory)
        context = RuleContext(
            spec=self.spec,
            stack=stack,
            model=self.model,
            node=share.node,
            engine=self.engine.facts,
            budget=memory,
            launch=launches[0],
        )
        plan = Plan(
            optistack_version=optistack.__version__,
            spec=self.spec,
            plugins=tuple(self._use(plugin) for plugin in self.plugins),
            dropped=self.dropped,
            model=self.model,
            node=self.node,
            share=share.node,
            engine=self.engine.facts,
            stack=stack,
            budget=memory,
            launches=launches,
            findings=evaluate(self._rules(), context),
            flag_check=check_launch(launches[0], self.engine),
            checkpoints=self.checkpoints,
        )
        return with_front(plan, self.host, self.plugins) if stack.routing.front.value else plan

    def _launches(self, stack: ResolvedStack, memory: MemoryBudget) -> tuple[Launch, ...]:
        behind = bool(stack.routing.front.value)
        launches = (
            self.backend.render(
                RenderRequest(
                    spec=for_replicas(self.spec) if behind else self.spec,
                    stack=stack,
                    model=self.model,
                    node=part.node,
                    engine=self.engine.facts,
                    budget=memory,
                    replica=index,
                    gpus=part.gpus,
                )
            )
            for index, part in enumerate(self.shares)
        )
        return tuple(behind_front(launch) if behind else launch for launch in launches)

    def resolve(self) -> ResolvedStack:
        share = self.shares[0].node
        _check_heads(self.model, self.spec)
        context = PlanContext(
            model=self.model,
            node=share,
            engine=self.engine.facts,
            parallel=self.spec.parallel,
            workload=self.spec.workload,
            options=None,
            so_far=ResolvedStack(),
            load_model=self.load_model,
        )
        adapter = self.backend.defaults(self.spec, self.model, share, self.engine.facts)
        base = [
            Contribution("stack", stack_wishes(self.spec)),
            *(Contribution("plan", wish, fallback=True) for wish in plan_wishes(self.spec, self.model)),
            *(Contribution(self.backend.name, wish, fallback=True) for wish in adapter),
        ]
        return resolve(self.host, self.plugins, context, self.options, base)

    def budget_request(self, stack: ResolvedStack) -> BudgetRequest:
        reserves = self.backend.reserves(stack, self.model, self.shares[0].node, self.engine.facts, self.spec)
        kv_gib = self.spec.serving.kv_memory_gib
        return BudgetRequest(
            model=self.model,
            node=self.shares[0].node,
            tensor_parallel=self.spec.parallel.tensor,
            attention_data_parallel=self.spec.parallel.attention_data,
            expert_parallel=self.spec.parallel.expert,
            kv_dtype=stack.kv.dtype.value or self.model.dtype,
            page_size_tokens=stack.kv.page_size_tokens.value or 1,
            charges=stack.charges,
            reserves=reserves,
            kv_pool_bytes=int(kv_gib * 2**30) if kv_gib else None,
            workload_tokens=self.spec.workload.input_tokens + self.spec.workload.output_tokens,
        )

    def load_model(self, reference: str, config: str | None) -> ModelFacts:
        facts = load_model(reference, config_fallback=_path(config))
        self.checkpoints[reference] = facts.config_file
        return facts

    def _use(self, plugin: Plugin) -> PluginUse:
        options: dict[str, Any] = self.options[plugin.name].model_dump(mode="json")
        return PluginUse(name=plugin.name, version=plugin.info.version, options=options)

    def _rules(self) -> list[tuple[str, Rule]]:
        rules = [("optistack", rule) for rule in CORE_RULES]
        rules += [(self.backend.name, rule) for rule in self.backend.rules()]
        for plugin in self.plugins:
            rules += [(plugin.name, rule) for rule in self.host.call_many(plugin, "optistack_rules", Rule)]
        sources: dict[str, str] = {}
        for source, rule in rules:
            if sources.setdefault(rule.id, source) != source:
                raise PlanRefusedError(f"Two rules are called {rule.id}: of {sources[rule.id]} and of {source}.")
        return rules


def get_backend_for(spec: StackSpec, asked: str | None) -> Backend:
    """The adapter that the command line or the stack file names. Raises InputError when neither does."""
    from optistack.backend import backend_names, get_backend

    name = asked or spec.backend
    if name is None:
        raise InputError("No backend is named.", fix=f"Give --backend, one of {', '.join(backend_names())}.")
    return get_backend(name)
