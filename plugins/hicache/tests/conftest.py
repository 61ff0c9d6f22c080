"""A small MLA model made of a config.json, and a plan made without an engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import optistack_hicache
from optistack.context import EngineFacts, PlanContext
from optistack.facts import ModelFacts, NodeFacts, load_model, load_node
from optistack.facts.node import GIB
from optistack.host import Host
from optistack.launch import Launch
from optistack.memory.budget import BudgetRequest, MemoryBudget, budget
from optistack.plan.plan import FlagCheck, Plan, PluginUse
from optistack.resolve import parse_options, resolve
from optistack.rules import Finding, RuleContext, evaluate
from optistack.settings import KVLayout, MemoryCharge, Serving, Settings, Speculation, choose
from optistack.settings.resolved import Contribution, ResolvedStack
from optistack.stack.spec import ModelSection, ParallelSection, StackSpec, WorkloadSection

MLA: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "dtype": "bfloat16",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "kv_lora_rank": 448,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 131072,
}
GQA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 131072,
}
MLA_TOKEN_BYTES = (448 + 64) * 4
"""Of one token on one rank with FP8 KV."""

DRAFT_TOKEN_BYTES = 256
ENGINES = {"sglang": "0.5.23", "vllm": "0.33.0"}
TRAITS = {
    "sglang": {
        "host_tier": True,
        "host_kv_copies": "rank",
        "host_tier_reserve_bytes": 10 * GIB,
        "storage_backends": ("file", "mooncake", "nixl"),
    },
    "vllm": {
        "host_tier": True,
        "host_kv_copies": "shared",
        "host_tier_shm": "always",
        "storage_backends": ("file", "lmcache", "mooncake"),
    },
}


def a_draft() -> Speculation:
    charge = MemoryCharge(what="draft KV", per_kv_token_bytes=DRAFT_TOKEN_BYTES)
    return Speculation(method=choose("dflash"), draft_checkpoint=choose("some/draft"), charges=(charge,))


@dataclass
class Bench:
    """A model, a node and an engine; ``resolve``, ``findings`` and ``plan`` run the plugin on them."""

    folder: Path
    target: dict[str, Any] = field(default_factory=lambda: deepcopy(MLA))
    node: NodeFacts = field(default_factory=lambda: load_node("b200x4"))
    backend: str = "sglang"
    version: str = ""
    device: str = "cuda"
    traits: dict[str, Any] = field(default_factory=dict)
    parallel: ParallelSection = field(default_factory=lambda: ParallelSection(tensor=4))
    others: list[Settings | Serving] = field(default_factory=lambda: [KVLayout(dtype=choose("fp8_e4m3"))])

    @property
    def engine(self) -> EngineFacts:
        traits = {**TRAITS[self.backend], **self.traits}
        version = self.version or ENGINES[self.backend]
        return EngineFacts(backend=self.backend, version=version, device=self.device, traits=traits)

    @property
    def model(self) -> ModelFacts:
        return load_model(str(self.write("target", self.target)))

    @property
    def spec(self) -> StackSpec:
        return StackSpec(
            model=ModelSection(checkpoint=str(self.folder / "target")),
            parallel=self.parallel,
            workload=WorkloadSection(),
        )

    def write(self, name: str, config: Mapping[str, Any]) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def with_draft(self) -> Bench:
        self.others.append(a_draft())
        return self

    def resolve(self, **options: Any) -> ResolvedStack:
        host = Host()
        plugin = host.register(optistack_hicache, name="hicache", distribution="optistack-hicache 0.1.0")
        context = PlanContext(
            model=self.model,
            node=self.node,
            engine=self.engine,
            parallel=self.parallel,
            workload=WorkloadSection(),
            options=None,
            so_far=ResolvedStack(),
            load_model=lambda reference, config: load_model(
                reference, config_fallback=Path(config) if config else None
            ),
        )
        base = [Contribution("other", settings) for settings in self.others]
        return resolve(host, [plugin], context, {"hicache": parse_options(plugin, options)}, base)

    def budget(self, stack: ResolvedStack, **fields: Any) -> MemoryBudget:
        return budget(
            BudgetRequest(
                model=self.model,
                node=self.node,
                tensor_parallel=self.parallel.tensor,
                kv_dtype=stack.kv.dtype.value or "bfloat16",
                charges=stack.charges,
                **fields,
            )
        )

    def findings(self, *, kv_pool_bytes: int | None = None, **options: Any) -> dict[str, Finding]:
        """The plugin's rules that fire, by id."""
        stack = self.resolve(**options)
        context = RuleContext(
            spec=self.spec,
            stack=stack,
            model=self.model,
            node=self.node,
            engine=self.engine,
            budget=self.budget(stack, kv_pool_bytes=kv_pool_bytes),
            launch=self._launch(),
        )
        rules = [("hicache", rule) for rule in optistack_hicache.optistack_rules()]
        return {finding.rule: finding for finding in evaluate(rules, context)}

    def plan(self, **options: Any) -> Plan:
        stack = self.resolve(**options)
        return Plan(
            optistack_version="0.1.0",
            spec=self.spec,
            plugins=(PluginUse(name="hicache", version="0.1.0", options=options),),
            model=self.model,
            node=self.node,
            share=self.node,
            engine=self.engine,
            stack=stack,
            budget=self.budget(stack),
            launches=(self._launch(),),
            flag_check=FlagCheck(against="nothing"),
        )

    def _launch(self) -> Launch:
        return Launch(backend=self.backend, version=self.engine.version, command=("-m", "engine"), arguments=())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def make_bench(tmp_path: Path) -> Callable[..., Bench]:
    return lambda **fields: Bench(tmp_path, **fields)


@pytest.fixture
def gqa() -> dict[str, Any]:
    return deepcopy(GQA)
