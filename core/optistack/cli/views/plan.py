"""A whole plan."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import columns, heading, indented, joined
from optistack.cli.views.launch import launch_view
from optistack.cli.views.memory import memory_view
from optistack.cli.views.preflight import preflight_view
from optistack.cli.views.rules import rules_view
from optistack.cli.views.settings import settings_view
from optistack.facts.model import ModelFacts
from optistack.plan.plan import Plan


def plan_view(plan: Plan, *, wide: bool) -> Iterator[RenderableType]:
    """The plan from the question (which stack) to the answer (the launch), one renderable below the other."""
    yield from _head(plan, wide=wide)
    for part in (
        settings_view(plan.stack, wide=wide),
        memory_view(plan.budget, plan.share, plan.spec.workload, wide=wide),
        rules_view(plan, wide=wide),
        preflight_view(plan.preflight, wide=wide),
        launch_view(plan, wide=wide),
    ):
        lines = list(part)
        if lines:
            yield Text()
            yield from lines


def _head(plan: Plan, *, wide: bool) -> Iterator[RenderableType]:
    yield heading(plan.spec.name, f"plan {plan.hash()[:12]}")
    table = columns(None, None if wide else 120)
    table.add_row("model", _model(plan.model))
    table.add_row("engine", f"{plan.engine.backend} {plan.engine.version}{_absent(plan)}")
    table.add_row("node", _node(plan))
    table.add_row("workload", _workload(plan))
    table.add_row("plugins", joined(f"{use.name} {use.version}" for use in plan.plugins) or "none")
    yield indented(table)


def _absent(plan: Plan) -> str:
    """What to know of an engine that cannot be started here."""
    if plan.engine.installed:
        return ""
    from optistack.engines.environment import installed_engines

    same = (plan.engine.backend, plan.engine.version)
    other = next((found.name for found in installed_engines() if (found.backend, found.version) == same), None)
    return f" (no build for this node is installed here; {other} is)" if other else " (not installed here)"


def _model(model: ModelFacts) -> str:
    moe = model.moe
    experts = f"{moe.routed_experts} experts of which {moe.experts_per_token} used" if moe else ""
    read = "by its tensors" if model.evidence == "headers" else "by its config"
    words = [
        model.architecture,
        model.attention.kind.upper(),
        f"{model.layers} layers",
        experts,
        f"{model.weight_bytes / 1e9:,.1f} GB {read}",
    ]
    return f"{model.source}: {joined(words)}"


def _node(plan: Plan) -> str:
    parallel = plan.spec.parallel
    words = [
        f"{plan.node.gpus} x {plan.node.gpu.name}" if plan.node.gpu else f"{plan.node.cpus} CPUs",
        f"TP{parallel.tensor}",
        f"EP{parallel.expert}" if parallel.expert > 1 else "",
        f"attention DP{parallel.attention_data}" if parallel.attention_data > 1 else "",
        f"{parallel.replicas} replicas" if parallel.replicas > 1 else "1 replica",
    ]
    return f"{plan.node.name}: {joined(words)}"


def _workload(plan: Plan) -> str:
    load = plan.spec.workload
    turns = f", {load.turns} turns a session" if load.turns > 1 else ""
    return f"{load.input_tokens:,} tokens in, {load.output_tokens:,} out, {load.concurrency} at once{turns}"
