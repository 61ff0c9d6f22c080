"""A world to plan in: checkpoints of Kimi K2.6's shape, nodes and engines."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import optistack_quant_nvfp4
from optistack.context import EngineFacts, PlanContext
from optistack.facts.checkpoint import load_model
from optistack.facts.model import ModelFacts
from optistack.facts.node import NodeFacts, load_node
from optistack.host import Host
from optistack.launch import Launch, LaunchArgument
from optistack.resolve import parse_options, resolve
from optistack.rules import Finding, RuleContext, evaluate
from optistack.settings.resolved import ResolvedStack
from optistack.stack.spec import ModelSection, ParallelSection, StackSpec, WorkloadSection

KIMI = Path(__file__).parents[3] / "stacks" / "models" / "kimi-k2.6-nvfp4"
NOT_SHARED = ("*self_attn*", "*layers.0.mlp*", "*mlp.gate", "*lm_head", "*vision_tower*", "*mm_projector*")
NOT_EXPERTS = ("*shared_experts*", *NOT_SHARED)


@dataclass(frozen=True)
class World:
    """One plan's surroundings. ``flags`` are further flags of the launch, like ``--flag=value``."""

    model: ModelFacts
    node: NodeFacts
    engine: EngineFacts
    parallel: ParallelSection
    options: tuple[tuple[str, Any], ...] = ()
    flags: tuple[str, ...] = ()

    def resolve(self) -> ResolvedStack:
        host = Host()
        plugin = host.register(optistack_quant_nvfp4, name="quant-nvfp4", distribution="optistack-quant-nvfp4 0.1.0")
        context = PlanContext(
            model=self.model,
            node=self.node,
            engine=self.engine,
            parallel=self.parallel,
            workload=WorkloadSection(),
            options=None,
            so_far=ResolvedStack(),
            load_model=lambda reference, config: self.model,
        )
        return resolve(host, [plugin], context, {plugin.name: parse_options(plugin, dict(self.options))}, [])

    def context(self) -> RuleContext:
        launch = Launch(
            backend=self.engine.backend,
            version=self.engine.version,
            command=("-m", "engine"),
            arguments=tuple(
                LaunchArgument(flag=flag, value=value or None, source="stack file")
                for flag, _, value in (word.partition("=") for word in self.flags)
            ),
        )
        return RuleContext(
            spec=StackSpec(model=ModelSection(checkpoint=self.model.source), parallel=self.parallel),
            stack=self.resolve(),
            model=self.model,
            node=self.node,
            engine=self.engine,
            budget=None,
            launch=launch,
        )

    def findings(self) -> dict[str, Finding]:
        rules = optistack_quant_nvfp4.optistack_rules()
        return {finding.rule: finding for finding in evaluate([("quant-nvfp4", r) for r in rules], self.context())}

    def on(self, name: str, *, sm: int | None = None) -> World:
        """On another node; ``sm`` turns its GPUs into others of the same size."""
        facts = load_node(name)
        if sm is not None and facts.gpu is not None:
            facts = facts.model_copy(update={"gpu": facts.gpu.model_copy(update={"sm": sm})})
        return replace(self, node=facts)

    def by(self, backend: str, version: str = "", **facts: Any) -> World:
        known = {"sglang": "0.5.23", "vllm": "0.33.0"}
        version = version or known.get(backend, "1.0")
        return replace(self, engine=EngineFacts(backend=backend, version=version, **{"device": "cuda", **facts}))

    def of(self, model: ModelFacts) -> World:
        return replace(self, model=model)

    def asking(self, **options: Any) -> World:
        return replace(self, options=tuple(options.items()))

    def saying(self, *flags: str) -> World:
        return replace(self, flags=flags)

    def spread(self, **parallel: int) -> World:
        return replace(self, parallel=ParallelSection(**parallel))


class Checkpoints:
    """Writes checkpoints of Kimi's shape (config and quantization metadata alone) and reads them back as facts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def modelopt(self, algo: str = "NVFP4", exclude: tuple[str, ...] = NOT_EXPERTS, **more: Any) -> ModelFacts:
        section = {"quant_algo": algo, "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": exclude}
        return self._write(None, {**section, **more})

    def compressed_tensors(self, *, activations: bool = True) -> ModelFacts:
        weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        group = {
            "format": "nvfp4-pack-quantized",
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": {**weights, "dynamic": "local"} if activations else None,
        }
        patterns = [f"re:{pattern.replace('*', '.*')}$" for pattern in NOT_EXPERTS]
        section = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": patterns}
        return self._write({**section, "format": "nvfp4-pack-quantized"}, None)

    def plain(self) -> ModelFacts:
        return self._write(None, None)

    def _write(self, inside: dict[str, Any] | None, sidecar: dict[str, Any] | None) -> ModelFacts:
        config = json.loads((KIMI / "config.json").read_text())
        config.pop("quantization_config", None)
        if inside is not None:
            config["quantization_config"] = inside
        (self._folder / "config.json").write_text(json.dumps(config))
        (self._folder / "hf_quant_config.json").unlink(missing_ok=True)
        if sidecar is not None:
            (self._folder / "hf_quant_config.json").write_text(json.dumps({"quantization": sidecar}))
        return load_model(str(self._folder / "config.json"))


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


@pytest.fixture
def world() -> World:
    """Kimi K2.6 with ModelOpt NVFP4 in its routed experts, on four B200s, with SGLang."""
    engine = EngineFacts(backend="sglang", version="0.5.23", device="cuda")
    kimi = load_model(str(KIMI / "config.json"))
    return World(kimi, load_node("b200x4"), engine, ParallelSection(tensor=4))
