"""Plans for SGLang without plugins: settings are put together by hand, the rest is the real thing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from optistack.backend import RenderRequest
from optistack.engines.environment import EngineEnvironment, installed_engines
from optistack.facts import ModelFacts, NodeFacts, load_model, load_node
from optistack.launch import Launch
from optistack.memory.budget import budget
from optistack.memory.kv import bytes_per_token
from optistack.memory.request import BudgetRequest
from optistack.memory.weights import Placement, weight_bytes
from optistack.plan.wishes import plan_wishes, stack_wishes
from optistack.rules import RuleContext
from optistack.settings import (
    CacheTier,
    KVLayout,
    MemoryCharge,
    Serving,
    Settings,
    Speculation,
    WeightQuantization,
    choose,
    suggest,
)
from optistack.settings.resolved import Contribution, combine
from optistack.stack.spec import StackSpec
from optistack_adapters.sglang import backend

MODELS = Path(__file__).parents[3] / "stacks" / "models"
KIMI = "nvidia/Kimi-K2.6-NVFP4"
GB = 10**9

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}

CPU = NodeFacts(name="cpu", device="cpu", gpus=0, host_ram_bytes=24 * 2**30, cpus=2)


@dataclass(frozen=True)
class Planned:
    """A rendered plan of one replica."""

    request: RenderRequest
    launch: Launch
    context: RuleContext

    @property
    def words(self) -> list[str]:
        return self.launch.argv("python", port=30000, folder="folder")[3:]


Build = Callable[..., Planned]


@pytest.fixture(scope="session")
def kimi() -> ModelFacts:
    return load_model(KIMI, config_fallback=MODELS / "kimi-k2.6-nvfp4")


@pytest.fixture(scope="session")
def kimi_draft() -> ModelFacts:
    return load_model("z-lab/Kimi-K2.6-DFlash", config_fallback=MODELS / "kimi-k2.6-dflash")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    folder = tmp_path_factory.mktemp("llama")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return load_model("meta/llama", config_fallback=folder)


@pytest.fixture(scope="session")
def stack_parts(kimi_draft: ModelFacts) -> tuple[Settings, ...]:
    """What the five plugins say for Kimi K2.6 on four B200."""
    captured = len((kimi_draft.draft_config or {})["target_layer_ids"])
    return (
        WeightQuantization(
            checkpoint_format=choose("modelopt"),
            experts=choose("nvfp4"),
            moe_backend=suggest("flashinfer_trtllm", why="fastest NVFP4 experts on SM100"),
            fp4_gemm_backend=suggest("flashinfer_cutedsl"),
        ),
        KVLayout(dtype=choose("fp8_e4m3", why="half the bytes"), draft_dtype=choose("bfloat16")),
        Speculation(
            method=choose("dflash"),
            draft_checkpoint=choose("z-lab/Kimi-K2.6-DFlash"),
            num_draft_tokens=suggest(7),
            draft_quantization=suggest("none"),
            draft_attention_backend=suggest("flashinfer"),
            serving=Serving(max_running_requests=suggest(16)),
            charges=(
                MemoryCharge(
                    what="draft weights", per_gpu_bytes=weight_bytes(kimi_draft, Placement(tensor_parallel=4))
                ),
                MemoryCharge(what="draft KV", per_kv_token_bytes=bytes_per_token(kimi_draft, "bfloat16", 4)),
                MemoryCharge(what="draft hidden states", per_gpu_bytes=16384 * captured * 7168 * 2, while_serving=True),
            ),
        ),
        CacheTier(
            level=2,
            backend=choose("native"),
            capacity_bytes=choose(600 * GB),
            write_policy=suggest("write_through"),
            io_backend=suggest("direct"),
            layout=suggest("page_first_direct"),
        ),
        CacheTier(
            level=3,
            backend=choose("file"),
            directory=choose("/mnt/nvme/kv/9f2c"),
            key=choose("9f2c"),
            prefetch_policy=suggest("timeout"),
        ),
    )


@pytest.fixture(scope="session")
def build(kimi: ModelFacts) -> Build:
    """``build(*settings, facts=, node=, version=, **sections of the stack file)`` renders a plan."""

    def make(
        *parts: Settings | Serving,
        facts: ModelFacts = kimi,
        node: NodeFacts | str = "b200x4",
        version: str = "0.5.23",
        replicas: int = 1,
        replica: int = 0,
        **sections: Any,
    ) -> Planned:
        host = load_node(node) if isinstance(node, str) else node
        spec = StackSpec.model_validate({"model": {"checkpoint": facts.source}, "node": host.name, **sections})
        engine = backend.facts(version, host.device)
        share = host.split(replicas, spec.parallel.tensor)[replica]
        stack = combine(
            [
                Contribution("stack", stack_wishes(spec)),
                *(Contribution("plan", wish, fallback=True) for wish in plan_wishes(spec, facts)),
                *(
                    Contribution("sglang", wish, fallback=True)
                    for wish in backend.defaults(spec, facts, share.node, engine)
                ),
                *(Contribution("mine", part) for part in parts),
            ]
        )
        memory = budget(
            BudgetRequest(
                model=facts,
                node=share.node,
                tensor_parallel=spec.parallel.tensor,
                attention_data_parallel=spec.parallel.attention_data,
                expert_parallel=spec.parallel.expert,
                kv_dtype=stack.kv.dtype.value or facts.dtype,
                page_size_tokens=stack.kv.page_size_tokens.value or 1,
                charges=stack.charges,
                reserves=backend.reserves(stack, facts, share.node, engine, spec),
                kv_pool_bytes=int(spec.serving.kv_memory_gib * 2**30) if spec.serving.kv_memory_gib else None,
                workload_tokens=spec.workload.input_tokens + spec.workload.output_tokens,
            )
        )
        request = RenderRequest(spec, stack, facts, share.node, engine, memory, replica, share.gpus)
        launch = backend.render(request)
        return Planned(request, launch, RuleContext(spec, stack, facts, share.node, engine, memory, launch))

    return make


KIMI_SECTIONS: dict[str, Any] = {
    "model": {"checkpoint": KIMI, "served_name": "kimi-k2.6", "trust_remote_code": True},
    "parallel": {"tensor": 4},
    "workload": {"input_tokens": 100_000, "output_tokens": 500, "concurrency": 5, "turns": 20},
    "serving": {"context_tokens": 131072, "reasoning_parser": "kimi_k2", "tool_call_parser": "kimi_k2"},
}


@pytest.fixture(scope="session")
def kimi_sections() -> dict[str, Any]:
    return KIMI_SECTIONS


@pytest.fixture(scope="session")
def cpu() -> NodeFacts:
    return CPU


@pytest.fixture(scope="session")
def full(build: Build, stack_parts: tuple[Settings, ...]) -> Planned:
    """The reference deployment: Kimi K2.6 in NVFP4 on four B200 with everything on."""
    return build(*stack_parts, **KIMI_SECTIONS)


@pytest.fixture(scope="session")
def sglang_cpu() -> EngineEnvironment:
    """The installed SGLang for the CPU. Its resolution is the same as that for GPUs."""
    for environment in installed_engines():
        if environment.name == "sglang-cpu":
            return environment
    missing = "sglang-cpu is not installed: run `optistack engine install sglang-cpu`"
    if os.environ.get("OPTISTACK_REQUIRE_ENGINES") == "1":
        pytest.fail(missing)
    pytest.skip(missing)
