"""A world to plan in: models with MLA and with GQA, nodes, engines, and other plugins' settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import optistack_kv_fp8
from optistack.context import EngineFacts, PlanContext
from optistack.facts.checkpoint import load_model
from optistack.facts.model import ModelFacts
from optistack.facts.node import NodeFacts, load_node
from optistack.host import Host
from optistack.launch import Launch
from optistack.memory import BudgetRequest, budget
from optistack.plan.plan import FlagCheck, Plan, PluginUse
from optistack.resolve import parse_options, resolve
from optistack.rules import Finding, RuleContext, evaluate
from optistack.settings import MemoryCharge, Serving, Speculation
from optistack.settings.resolved import Contribution, ResolvedStack
from optistack.stack.spec import ModelSection, ParallelSection, StackSpec, WorkloadSection

KIMI = Path(__file__).parents[3] / "stacks" / "models" / "kimi-k2.6-nvfp4"
DRAFT = Speculation(method="dflash", draft_checkpoint="draft", num_draft_tokens=7)


@dataclass(frozen=True)
class World:
    """One plan's surroundings. ``others`` is what other plugins and the stack file say."""

    model: ModelFacts
    node: NodeFacts
    engine: EngineFacts
    parallel: ParallelSection
    workload: WorkloadSection
    options: tuple[tuple[str, Any], ...] = ()
    others: tuple[Serving | Speculation, ...] = ()
    charges: tuple[MemoryCharge, ...] = ()

    def resolve(self) -> ResolvedStack:
        host = Host()
        plugin = host.register(optistack_kv_fp8, name="kv-fp8", distribution="optistack-kv-fp8 0.1.0")
        context = PlanContext(
            model=self.model,
            node=self.node,
            engine=self.engine,
            parallel=self.parallel,
            workload=self.workload,
            options=None,
            so_far=ResolvedStack(),
            load_model=lambda reference, config: self.model,
        )
        options = {plugin.name: parse_options(plugin, dict(self.options))}
        return resolve(host, [plugin], context, options, [Contribution("other", other) for other in self.others])

    def findings(self) -> dict[str, Finding]:
        launch = Launch(backend=self.engine.backend, version=self.engine.version, command=(), arguments=())
        context = RuleContext(
            spec=self.spec(),
            stack=self.resolve(),
            model=self.model,
            node=self.node,
            engine=self.engine,
            budget=None,
            launch=launch,
        )
        found = evaluate([("kv-fp8", rule) for rule in optistack_kv_fp8.optistack_rules()], context)
        return {finding.rule: finding for finding in found}

    def spec(self) -> StackSpec:
        model = ModelSection(checkpoint=self.model.source)
        return StackSpec(model=model, parallel=self.parallel, workload=self.workload)

    def plan(self) -> Plan:
        stack = self.resolve()
        sizes = BudgetRequest(
            model=self.model,
            node=self.node,
            tensor_parallel=self.parallel.tensor,
            kv_dtype=str(stack.kv.dtype.value),
            charges=self.charges,
        )
        return Plan(
            optistack_version="0.1.0",
            spec=self.spec(),
            plugins=(PluginUse(name="kv-fp8", version="0.1.0", options=dict(self.options)),),
            model=self.model,
            node=self.node,
            share=self.node,
            engine=self.engine,
            stack=stack,
            budget=budget(sizes),
            launches=(),
            flag_check=FlagCheck(against="nothing"),
        )

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

    def on_cpu(self, backend: str) -> World:
        return self.by(backend, "0.32.0" if backend == "vllm" else "", device="cpu").on("cpu").spread(tensor=1)

    def of(self, model: ModelFacts) -> World:
        return replace(self, model=model)

    def having(self, **facts: Any) -> World:
        """With other facts about the model."""
        return replace(self, model=self.model.model_copy(update=facts))

    def asking(self, **options: Any) -> World:
        return replace(self, options=tuple(options.items()))

    def beside(self, *others: Serving | Speculation) -> World:
        return replace(self, others=(*self.others, *others))

    def attending(self, backend: str) -> World:
        return self.beside(Serving(attention_backend=backend))

    def drafting(self, **changes: Any) -> World:
        return self.beside(DRAFT.model_copy(update=changes))

    def spread(self, **parallel: int) -> World:
        return replace(self, parallel=ParallelSection(**parallel))

    def reading(self, input_tokens: int) -> World:
        return replace(self, workload=WorkloadSection(input_tokens=input_tokens))

    def charging(self, bytes_per_token: int) -> World:
        return replace(self, charges=(MemoryCharge(what="draft KV", per_kv_token_bytes=bytes_per_token),))


@pytest.fixture
def world() -> World:
    """Kimi K2.6 (MLA; its metadata says FP8 KV, its weights are not at hand) on four B200s, with SGLang."""
    engine = EngineFacts(backend="sglang", version="0.5.23", device="cuda")
    kimi = load_model(str(KIMI / "config.json"))
    return World(kimi, load_node("b200x4"), engine, ParallelSection(tensor=4), WorkloadSection())


@pytest.fixture
def small(tmp_path: Path) -> ModelFacts:
    """SmolLM2-135M's shape: GQA with 3 KV heads of 64, 30 layers, nothing quantized."""
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return load_model(str(tmp_path / "config.json"))
