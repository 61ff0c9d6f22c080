"""Small checkpoints made of a config.json, and a plan made without an engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import optistack_dflash
from optistack.context import EngineFacts, PlanContext
from optistack.facts import ModelFacts, NodeFacts, load_model, load_node
from optistack.host import Host
from optistack.launch import Launch, LaunchArgument
from optistack.memory.budget import BudgetRequest, budget
from optistack.plan.plan import FlagCheck, Plan, PluginUse
from optistack.resolve import parse_options, resolve
from optistack.rules import Finding, RuleContext, evaluate
from optistack.settings import Serving, Settings
from optistack.settings.resolved import Contribution, ResolvedStack
from optistack.stack.spec import ModelSection, ParallelSection, StackSpec, WorkloadSection

TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
DRAFT: dict[str, Any] = {
    **TARGET,
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "block_size": 8,
    "num_target_layers": 8,
    "dflash_config": {"target_layer_ids": [1, 4, 6], "mask_token_id": 999},
}
ENGINES = {"sglang": "0.5.23", "vllm": "0.33.0"}


@dataclass
class Bench:
    """A target, a draft and an engine; ``resolve``, ``findings`` and ``plan`` run the plugin on them."""

    folder: Path
    target: dict[str, Any] = field(default_factory=lambda: deepcopy(TARGET))
    draft: dict[str, Any] = field(default_factory=lambda: deepcopy(DRAFT))
    node: NodeFacts = field(default_factory=lambda: load_node("b200x4"))
    backend: str = "sglang"
    version: str = ""
    device: str = "cuda"
    traits: dict[str, Any] = field(default_factory=dict)
    parallel: ParallelSection = field(default_factory=ParallelSection)
    workload: WorkloadSection = field(default_factory=WorkloadSection)
    options: dict[str, Any] = field(default_factory=dict)
    others: list[Settings | Serving] = field(default_factory=list)

    @property
    def draft_folder(self) -> Path:
        return self.folder / "draft"

    @property
    def engine(self) -> EngineFacts:
        version = self.version or ENGINES[self.backend]
        return EngineFacts(backend=self.backend, version=version, device=self.device, traits=self.traits)

    @property
    def model(self) -> ModelFacts:
        return load_model(str(self.write("target", self.target)))

    @property
    def spec(self) -> StackSpec:
        return StackSpec(
            model=ModelSection(checkpoint=str(self.folder / "target")),
            parallel=self.parallel,
            workload=self.workload,
        )

    def write(self, name: str, config: Mapping[str, Any]) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def resolve(self, **options: Any) -> ResolvedStack:
        self.write("draft", self.draft)
        host = Host()
        plugin = host.register(optistack_dflash, name="dflash", distribution="optistack-dflash 0.1.0")
        given = {"draft": str(self.draft_folder), **self.options, **options}
        context = PlanContext(
            model=self.model,
            node=self.node,
            engine=self.engine,
            parallel=self.parallel,
            workload=self.workload,
            options=None,
            so_far=ResolvedStack(),
            load_model=lambda reference, config: load_model(
                reference, config_fallback=Path(config) if config else None
            ),
        )
        base = [Contribution("other", settings) for settings in self.others]
        return resolve(host, [plugin], context, {"dflash": parse_options(plugin, given)}, base)

    def findings(self, *, arguments: tuple[LaunchArgument, ...] = (), **options: Any) -> dict[str, Finding]:
        """The plugin's rules that fire, by id."""
        stack = self.resolve(**options)
        context = RuleContext(
            spec=self.spec,
            stack=stack,
            model=self.model,
            node=self.node,
            engine=self.engine,
            budget=None,
            launch=self._launch(arguments),
        )
        rules = [("dflash", rule) for rule in optistack_dflash.optistack_rules()]
        return {finding.rule: finding for finding in evaluate(rules, context)}

    def plan(self, **options: Any) -> Plan:
        stack = self.resolve(**options)
        given = {"draft": str(self.draft_folder), **self.options, **options}
        return Plan(
            optistack_version="0.1.0",
            spec=self.spec,
            plugins=(PluginUse(name="dflash", version="0.1.0", options=given),),
            model=self.model,
            node=self.node,
            share=self.node,
            engine=self.engine,
            stack=stack,
            budget=budget(BudgetRequest(model=self.model, node=self.node, kv_dtype="bfloat16")),
            launches=(self._launch(()),),
            flag_check=FlagCheck(against="nothing"),
        )

    def _launch(self, arguments: tuple[LaunchArgument, ...]) -> Launch:
        return Launch(backend=self.backend, version=self.engine.version, command=("-m", "engine"), arguments=arguments)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def make_bench(tmp_path: Path) -> Callable[..., Bench]:
    return lambda **fields: Bench(tmp_path, **fields)
