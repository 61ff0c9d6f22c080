"""The launch of one replica."""

from __future__ import annotations

from optistack.backend import RenderRequest
from optistack.launch import Launch
from optistack_adapters.base import LaunchBuilder
from optistack_adapters.sglang.flags.attention import add_attention
from optistack_adapters.sglang.flags.device import add_device, add_parallelism
from optistack_adapters.sglang.flags.model import add_address, add_model
from optistack_adapters.sglang.flags.scheduling import add_memory, add_reporting, add_scheduling
from optistack_adapters.sglang.flags.speculation import add_speculation
from optistack_adapters.sglang.flags.tiers import add_tiers
from optistack_adapters.sglang.flags.weights import add_weights

ALIASES = {
    "--model": "--model-path",
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--ep": "--ep-size",
    "--expert-parallel-size": "--ep-size",
    "--dp": "--dp-size",
    "--data-parallel-size": "--dp-size",
    "--attention-data-parallel-size": "--attn-dp-size",
    "--enable-hicache": "--enable-hierarchical-cache",
    "--speculative-draft-model": "--speculative-draft-model-path",
    "--speculative-dflash-block-size": "--speculative-num-draft-tokens",
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
}
"""Other spellings of the flags that we set, and flags that say the same in other words."""


def render(request: RenderRequest) -> Launch:
    """The launch of one replica.

    Raises PlanRefusedError when two sources own one flag, when ``engine_args`` repeats one of ours, or when a size
    cannot be said to SGLang.
    """
    build = LaunchBuilder("sglang", aliases=ALIASES)
    for add in (
        add_model,
        add_device,
        add_parallelism,
        add_attention,
        add_weights,
        add_memory,
        add_scheduling,
        add_speculation,
        add_tiers,
        add_reporting,
        add_address,
    ):
        add(build, request)
    build.plugin_arguments(request.stack.arguments, request.engine.version)
    build.user_arguments(request.spec.engine_args)
    return Launch(
        backend="sglang",
        version=request.engine.version,
        replica=request.replica,
        gpus=request.gpus,
        command=("-m", "sglang.launch_server"),
        arguments=build.arguments,
        variables=build.variables,
        files=tuple(build.files),
        host=request.spec.serving.host,
        ready_path="/health",
    )
