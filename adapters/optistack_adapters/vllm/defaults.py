"""What the adapter itself suggests for a model on a node. Everything here yields to plugins and to the stack file."""

from __future__ import annotations

from typing import Any

from optistack.facts.model import ModelFacts
from optistack.facts.node import NodeFacts
from optistack.settings import KVLayout, Serving, Settings, Value, suggest
from optistack.stack.spec import StackSpec
from optistack_adapters.vllm.versions import CPU_PREFILL_TOKENS, GPU_PREFILL_TOKENS

BLACKWELL = (100, 103)
"""Compute capabilities of the data-centre parts that vLLM calls family 100 (B200, B300)."""


def defaults(spec: StackSpec, model: ModelFacts, node: NodeFacts) -> tuple[Settings | Serving, ...]:
    """Batch limits, attention kernels and page size, always stated, since memory and speculation depend on them."""
    cpu = node.device == "cpu"
    fields: dict[str, Value[Any]] = {
        "max_running_requests": suggest(
            spec.parallel.for_all_groups(2 * spec.workload.concurrency),
            why="twice the workload's concurrency, so that a burst is not queued; vLLM's own is 256 to 1024 on a GPU, "
            "and a draft's slots are taken out of the prefill budget for each",
            reference="vllm 0.33 engine/arg_utils.py get_batch_defaults",
        ),
        "chunked_prefill_tokens": suggest(
            CPU_PREFILL_TOKENS if cpu else GPU_PREFILL_TOKENS,
            why="vLLM's own choice for a server on a CPU"
            if cpu
            else "vLLM's own choice for a server from 70 GB on; it takes 16384 from 160 GB on, which doubles "
            "activations and a drafter's hidden states, and KV has the better use for them",
            reference="vllm 0.33 engine/arg_utils.py get_batch_defaults",
        ),
    }
    if cpu:
        fields["cuda_graphs"] = suggest(False, why="there are none on a CPU; it also spares compiling the model")
    elif model.attention.kind == "mla" and node.sm in BLACKWELL:
        fields["attention_backend"] = _blackwell_mla()
    return Serving(**fields), KVLayout(page_size_tokens=_page_size(model, node))


def _blackwell_mla() -> Value[str]:
    return suggest(
        "FLASHINFER_MLA",
        why="vLLM's own first choice for MLA on SM100: takes BF16 and FP8 KV and drafts of any length; TOKENSPEED_MLA "
        "wins past a batch of 8, loses at 2 and below, takes FP8 KV only and blocks of at most 8 query tokens",
        reference="vllm 0.33 platforms/cuda.py _get_backend_priorities, v1/attention/backends/mla/tokenspeed_mla.py",
    )


def _page_size(model: ModelFacts, node: NodeFacts) -> Value[int]:
    if node.device == "cpu":
        if model.attention.kind == "mla":
            return suggest(16, why="the CPU's MLA kernel has no other", reference="vllm 0.33 platforms/cpu.py")
        return suggest(128, why="vLLM's own choice on a CPU", reference="vllm 0.33 platforms/cpu.py")
    if model.attention.kind == "mla":
        return suggest(
            64,
            why="FLASHINFER_MLA, TOKENSPEED_MLA and FLASHMLA all take it; a smaller page leaves slower kernels only",
            reference="vllm 0.33 v1/attention/backends/mla",
        )
    return suggest(
        16, why="vLLM's own choice, which every kernel but MLA's takes", reference="vllm 0.33 config/cache.py"
    )
