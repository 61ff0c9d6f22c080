"""Where a replica runs: its GPUs or the CPU, and how it is spread over them."""

from __future__ import annotations

from optistack.backend import RenderRequest
from optistack_adapters.base import USER, LaunchBuilder
from optistack_adapters.sglang import versions


def add_device(build: LaunchBuilder, request: RenderRequest) -> None:
    """The device, and the GPUs of this replica."""
    if request.node.device == "cpu":
        build.variable(
            "SGLANG_USE_CPU_ENGINE",
            0,
            source="sglang",
            why="1 asks for the CPU build of sgl-kernel, which no package index has",
        )
        build.flag("--device", "cpu", source="sglang", why="the node is a CPU")
        build.flag("--sampling-backend", "pytorch", source="sglang", why="the only one without a GPU")
    elif request.gpus:
        build.variable(
            "CUDA_VISIBLE_DEVICES",
            ",".join(map(str, request.gpus)),
            source="plan",
            why=f"the GPUs of replica {request.replica}",
        )


def add_parallelism(build: LaunchBuilder, request: RenderRequest) -> None:
    """Tensor, expert and attention data parallelism."""
    parallel = request.spec.parallel
    build.flag("--tp-size", parallel.tensor, source=USER, why="parallel.tensor")
    if parallel.expert > 1:
        build.flag("--ep-size", parallel.expert, source=USER, why="parallel.expert")
    if parallel.attention_data > 1:
        if versions.has("attention-data-flag", request.engine.version):
            build.flag("--attn-dp-size", parallel.attention_data, source=USER, why="parallel.attention_data")
        else:
            build.flag("--dp-size", parallel.attention_data, source=USER, why="parallel.attention_data")
            build.flag("--enable-dp-attention", source=USER, why="parallel.attention_data")
