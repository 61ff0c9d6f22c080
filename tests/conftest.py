"""Plans made by hand, so that what is done with a plan can be tested apart from how one is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import optistack
from optistack.context import EngineFacts
from optistack.facts.checkpoint import load_model
from optistack.facts.node import load_node
from optistack.launch import Launch, LaunchArgument, LaunchFile, LaunchVariable
from optistack.memory import BudgetRequest, EngineReserves, budget
from optistack.plan.plan import FlagCheck, Plan, PluginUse
from optistack.rules import Evidence, Finding, Severity
from optistack.settings import CacheTier, KVLayout, MemoryCharge, Serving, Speculation, choose, constrain, suggest
from optistack.settings.resolved import Contribution, combine
from optistack.stack import ModelSection, ParallelSection, StackSpec, WorkloadSection

KIMI = Path(__file__).resolve().parents[1] / "stacks/models/kimi-k2.6-nvfp4"
GIB = 2**30

# Hypothesis times its examples, and a machine that is busy with something else is slow and not wrong.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


@pytest.fixture
def make_plan() -> Callable[..., Plan]:
    return _plan


def _plan(**changes: Any) -> Plan:
    """A plan of the reference stack on SGLang; ``changes``: ``kv_dtype``, ``tensor``, or whole fields of the plan."""
    kv_dtype, tensor = changes.pop("kv_dtype", "fp8_e4m3"), changes.pop("tensor", 4)
    spec = StackSpec(
        name="kimi",
        model=ModelSection(checkpoint="nvidia/Kimi-K2.6-NVFP4", config=str(KIMI)),
        node="b200x4",
        backend="sglang",
        parallel=ParallelSection(tensor=tensor),
        workload=WorkloadSection(input_tokens=100_000, output_tokens=500, concurrency=5, turns=30),
        plugins={"kv-fp8": {}, "dflash": {}},
    )
    model, node = load_model(spec.model.checkpoint, config_fallback=KIMI), load_node(spec.node)
    pages = constrain(one_of=(32, 64), why="the MLA kernel takes pages of 32 or 64", reference="docs/kernels")
    draft = MemoryCharge(what="draft weights", per_gpu_bytes=3 * GIB, weights=True, why="replicated", source="dflash")
    stack = combine(
        [
            Contribution("stack", Serving(context_tokens=choose(262_144, why="serving in the stack file"))),
            Contribution("sglang", Serving(attention_backend=suggest("trtllm_mla", why="fastest on SM100")), True),
            Contribution("sglang", KVLayout(page_size_tokens=pages)),
            Contribution(
                "kv-fp8",
                KVLayout(
                    dtype=choose(kv_dtype, why="half the bytes of BF16"), page_size_tokens=suggest(64, why="fits")
                ),
            ),
            Contribution(
                "dflash",
                Speculation(method=choose("dflash"), num_draft_tokens=choose(7, why="block of 8"), charges=(draft,)),
            ),
            Contribution("hicache", CacheTier(level=2, capacity_bytes=choose(200 * GIB, why="40% of the node's RAM"))),
        ]
    )
    memory = budget(
        BudgetRequest(
            model=model,
            node=node.split(1, tensor)[0].node,
            tensor_parallel=tensor,
            kv_dtype=kv_dtype,
            page_size_tokens=64,
            charges=stack.charges,
            reserves=EngineReserves(context_bytes=GIB, activations_bytes=6 * GIB, why="sglang 0.5.23 on SM100"),
            workload_tokens=100_500,
        )
    )
    launch = Launch(
        backend="sglang",
        version="0.5.23",
        gpus=tuple(range(tensor)),
        command=("-m", "sglang.launch_server"),
        arguments=(
            LaunchArgument(flag="--model-path", value="nvidia/Kimi-K2.6-NVFP4", source="stack"),
            LaunchArgument(flag="--port", value="{port}", source="plan"),
            LaunchArgument(
                flag="--kv-cache-dtype",
                value=kv_dtype,
                source="kv-fp8",
                why="half the bytes of BF16",
                setting="kv.dtype",
            ),
            LaunchArgument(flag="--enable-metrics", source="plan", why="the receipt reads them"),
            LaunchArgument(
                flag="--hicache-storage-backend-extra-config", value="@{folder}/l3 it's.json", source="hicache"
            ),
        ),
        variables=(LaunchVariable(name="SGLANG_X", value="a b $HOME", source="dflash", why="needed"),),
        files=(LaunchFile(name="l3 it's.json", content='{"a": "$HOME"}\nEND_OF_FILE\n', source="hicache"),),
    )
    finding = Finding(
        rule="sglang-spec-running-requests",
        severity=Severity.OVERRIDE,
        message="Speculation caps running requests at 48.",
        fix="Set serving.max_running_requests.",
        upstream="https://example.org/1",
        evidence=Evidence.OBSERVED,
        domain=None,
        source="sglang",
    )
    plan = Plan(
        optistack_version=optistack.__version__,
        spec=spec,
        plugins=(PluginUse(name="kv-fp8", version="0.1.0", options={"dtype": kv_dtype}),),
        model=model,
        node=node,
        share=node,
        engine=EngineFacts(backend="sglang", version="0.5.23", device="cuda"),
        stack=stack,
        budget=memory,
        launches=(launch,),
        findings=(finding,),
        flag_check=FlagCheck(against=""),
    )
    return plan.model_copy(update=changes)
