"""A world to plan in: SmolLM2's shape on one GPU or CPU, and an engine that really keeps prefixes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import optistack_routing
from optistack.context import EngineFacts, PlanContext
from optistack.facts.checkpoint import load_model
from optistack.facts.model import ModelFacts
from optistack.facts.node import NodeFacts, load_node
from optistack.host import Host
from optistack.launch import Launch, LaunchArgument
from optistack.memory import BudgetRequest, MemoryBudget, budget
from optistack.plan.plan import FlagCheck, Plan, PluginUse
from optistack.resolve import parse_options, resolve
from optistack.rules import Finding, RuleContext, evaluate
from optistack.settings import KVLayout, Serving, Settings, Speculation
from optistack.settings.resolved import Contribution, ResolvedStack
from optistack.stack.spec import ModelSection, ParallelSection, StackSpec, WorkloadSection
from optistack.verify.endpoint import Endpoint


@dataclass(frozen=True)
class World:
    """One plan's surroundings. ``others`` is what other plugins and the stack file say."""

    model: ModelFacts
    node: NodeFacts
    engine: EngineFacts
    parallel: ParallelSection
    workload: WorkloadSection
    options: tuple[tuple[str, Any], ...] = ()
    others: tuple[Settings | Serving, ...] = ()
    flags: tuple[str, ...] = ()

    def resolve(self) -> ResolvedStack:
        host = Host()
        plugin = host.register(optistack_routing, name="routing", distribution="optistack-routing 0.1.0")
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
        context = RuleContext(
            spec=self.spec(),
            stack=self.resolve(),
            model=self.model,
            node=self.node,
            engine=self.engine,
            budget=self.budget(),
            launch=self.launch(),
        )
        found = evaluate([("routing", rule) for rule in optistack_routing.optistack_rules()], context)
        return {finding.rule: finding for finding in found}

    def launch(self, replica: int = 0) -> Launch:
        arguments = tuple(LaunchArgument(flag=flag, source="test") for flag in self.flags)
        engine = self.engine
        return Launch(backend=engine.backend, version=engine.version, command=(), arguments=arguments, replica=replica)

    def spec(self) -> StackSpec:
        model = ModelSection(checkpoint=self.model.source)
        return StackSpec(model=model, parallel=self.parallel, workload=self.workload)

    def budget(self) -> MemoryBudget:
        wanted = self.workload.input_tokens + self.workload.output_tokens
        return budget(BudgetRequest(model=self.model, node=self.node, kv_dtype="bfloat16", workload_tokens=wanted))

    def plan(self) -> Plan:
        return Plan(
            optistack_version="0.1.0",
            spec=self.spec(),
            plugins=(PluginUse(name="routing", version="0.1.0", options=dict(self.options)),),
            model=self.model,
            node=self.node,
            share=self.node,
            engine=self.engine,
            stack=self.resolve(),
            budget=self.budget(),
            launches=tuple(self.launch(replica) for replica in range(self.parallel.replicas)),
            flag_check=FlagCheck(against="nothing"),
        )

    def planned(self) -> Plan:
        """The plan with its router."""
        plan = self.plan()
        front = optistack_routing.optistack_front(plan=plan)
        assert front is not None
        return plan.model_copy(update={"front": front.model_copy(update={"source": "routing", "version": "0.1.0"})})

    def by(self, backend: str, version: str = "") -> World:
        known = {"sglang": "0.5.23", "vllm": "0.33.0"}
        facts = EngineFacts(backend=backend, version=version or known.get(backend, "1.0"), device="cuda")
        return replace(self, engine=facts)

    def asking(self, **options: Any) -> World:
        return replace(self, options=tuple(options.items()))

    def launched(self, *flags: str) -> World:
        return replace(self, flags=flags)

    def checkpoint(self, *files: str) -> World:
        """With the folder of the checkpoint, which holds its config and ``files``."""
        folder = self.model.config_file.parent
        for name in files:
            (folder / name).write_text("{}")
        return replace(self, model=self.model.model_copy(update={"path": folder}))

    def beside(self, *others: Settings | Serving) -> World:
        return replace(self, others=(*self.others, *others))

    def serving(self, **fields: Any) -> World:
        return self.beside(Serving(**fields))

    def drafting(self, method: str) -> World:
        return self.beside(Speculation(method=method))

    def paging(self, tokens: int) -> World:
        return self.beside(KVLayout(page_size_tokens=tokens))

    def spread(self, **parallel: int) -> World:
        return replace(self, parallel=ParallelSection(**parallel))

    def working(self, **workload: int) -> World:
        return replace(self, workload=WorkloadSection(**workload))


@dataclass
class Engine:
    """An engine behind a transport: a token for each word, pages of prompts that were seen, and its ways to be wrong.

    ``page``      tokens of a page, and ``dropped`` further pages that it computes again
    ``caches``    whether it keeps prefixes at all
    ``reports``   whether its answers say how much was cached; ``counts`` whether its metrics do
    ``claims``    a figure that it reports whatever is true
    ``ranks``     attention ranks that take turns, each with a cache of its own
    ``late``      readings of the metrics after an answer that do not show it yet
    ``others``    prompt tokens of other clients, which come with each answer's
    """

    page: int = 128
    dropped: int = 0
    caches: bool = True
    reports: bool = True
    counts: bool = True
    claims: int | None = None
    ranks: int = 1
    flavour: str = "vllm"
    says_page: bool = True
    broken: bool = False
    prompts: list[str] = field(default_factory=list)
    hits: int = 0
    tokens: int = 0
    late: int = 0
    others: int = 0
    stale: list[str] = field(default_factory=list)

    def endpoint(self) -> Endpoint:
        return Endpoint("http://engine", transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        if request.url.path == "/metrics":
            return httpx.Response(200, text=self.stale.pop() if self.stale else self._metrics())
        if request.url.path == "/server_info" and self.flavour == "sglang":
            return httpx.Response(200, json={"page_size": self.page} if self.says_page else {})
        if request.url.path == "/v1/completions":
            return self._complete(json.loads(request.content)["prompt"])
        return httpx.Response(404)

    def _complete(self, prompt: str) -> httpx.Response:
        if self.broken:
            return httpx.Response(500, text="out of memory")
        self.stale = [self._metrics()] * self.late
        rank = len(self.prompts) % self.ranks
        seen = [old for old in self.prompts[rank :: self.ranks] if self.caches and prompt.startswith(old)]
        self.prompts.append(prompt)
        tokens = len(prompt.split())
        shared = min(tokens - 1, max((len(old.split()) for old in seen), default=0))
        cached = max(0, (shared // self.page - self.dropped) * self.page)
        self.hits += cached
        self.tokens += tokens + self.others
        usage: dict[str, Any] = {"prompt_tokens": tokens, "completion_tokens": 1}
        if self.reports:
            usage["prompt_tokens_details"] = {"cached_tokens": cached if self.claims is None else self.claims}
        return httpx.Response(200, json={"choices": [{"text": "."}], "usage": usage})

    def _metrics(self) -> str:
        counter = {"vllm": "vllm:prefix_cache_hits", "sglang": "sglang:cached_tokens"}[self.flavour]
        lines = []
        if self.counts:
            lines += [f"# TYPE {counter} counter", f'{counter}_total{{engine="0"}} {self.hits}']
            lines += [
                f"# TYPE {self.flavour}:prompt_tokens counter",
                f"{self.flavour}:prompt_tokens_total {self.tokens}",
            ]
        if self.flavour == "vllm" and self.says_page:
            lines += ["# TYPE vllm:cache_config_info gauge", f'vllm:cache_config_info{{block_size="{self.page}"}} 1']
        return "\n".join(lines) + "\n"


@pytest.fixture
def engine() -> type[Engine]:
    return Engine


@pytest.fixture
def world(tmp_path: Path) -> World:
    """SmolLM2-135M's shape on one H200 with vLLM."""
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
    model = load_model(str(tmp_path / "config.json"))
    vllm = EngineFacts(backend="vllm", version="0.33.0", device="cuda")
    return World(model, load_node("h200x1"), vllm, ParallelSection(), WorkloadSection())
