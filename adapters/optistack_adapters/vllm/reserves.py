"""What vLLM takes of a GPU beside weights and KV.

Estimates, checked against one measurement: a DeepSeek-V3-shaped model at Kimi K2's widths (20 layers, 32 experts,
60.39 GiB of weights) on one H200, vLLM 0.26, 64 sequences, 8192 prefill tokens, BF16 KV, eager: of 0.92 x 139.80 GiB
the engine kept 4.60 GiB to itself beside weights and KV, where :func:`activation_bytes` says 4.63 GiB; with CUDA
graphs for up to 128 tokens it kept 0.10 GiB more.
"""

from __future__ import annotations

from optistack.context import EngineFacts
from optistack.facts.model import ModelFacts
from optistack.facts.node import GIB, MIB, NodeFacts
from optistack.memory.request import EngineReserves
from optistack.settings.resolved import ResolvedStack
from optistack.stack.spec import StackSpec
from optistack.versions import at_least
from optistack_adapters.vllm.defaults import BLACKWELL
from optistack_adapters.vllm.scheduling import draft_slots, group_requests
from optistack_adapters.vllm.versions import GPU_PREFILL_TOKENS

CONTEXT_BYTES = 1 * GIB
COLLECTIVES_BYTES = 1 * GIB
UNUSED_FRACTION = 0.02
FIXED_ACTIVATION_BYTES = 300 * MIB
"""Kernels' own workspaces: FlashInfer's 128 to 256 MiB for MLA, sampling, RNG, block tables."""

MULTIMODAL_BYTES = 512 * MIB
MLA_WORKSPACE_TOKENS = 64 * 1024
"""Tokens of context that MLA prefill expands at a time (model_executor/layers/attention/mla_attention.py)."""

GRAPH_BYTES_A_LAYER = int(0.3 * MIB)
GRAPH_BASE_BYTES = 256 * MIB
TEXT_ONLY = "--language-model-only"
PLAIN_PRECISIONS = ("bf16", "fp16", "fp32")
CPU_WORKER_BYTES = 1 * GIB
CPU_HOST_BYTES = int(1.5 * GIB)
GPU_HOST_BYTES = 6 * GIB
GPU_HOST_BYTES_A_RANK = 4 * GIB


def reserves(
    stack: ResolvedStack, model: ModelFacts, node: NodeFacts, engine: EngineFacts, spec: StackSpec
) -> EngineReserves:
    """The reserves of one GPU (or CPU rank) of a replica, and how vLLM lays out the weights.

    A vision tower is divided over the ranks unless ``--mm-encoder-tp-mode data`` is given (config/multimodal.py).
    """
    common = EngineReserves(
        engine=f"vllm {engine.version}",
        activations_bytes=activation_bytes(stack, model, spec, engine.version),
        groups_share_experts_only=True,
        absorbed_mla_copies=_attention_is_quantized(model),
        vision_divided=True,
        vision_loaded=TEXT_ONLY not in spec.engine_args,
        mtp_loaded=stack.speculation.method.value == "mtp",
        why=f"vllm {engine.version}, estimated",
    )
    if node.device == "cpu":
        return common.model_copy(update={"context_bytes": CPU_WORKER_BYTES, "host_bytes": CPU_HOST_BYTES})
    ranks = spec.parallel.tensor
    gpu = node.gpu
    total = (gpu.cuda_bytes or gpu.hbm_bytes) if gpu else 0
    return common.model_copy(
        update={
            "context_bytes": CONTEXT_BYTES,
            "collectives_bytes": COLLECTIVES_BYTES if ranks > 1 else 0,
            "graphs_bytes": graph_bytes(stack, model, node, engine, spec),
            "unused_bytes": int(UNUSED_FRACTION * total),
            "host_bytes": GPU_HOST_BYTES + ranks * GPU_HOST_BYTES_A_RANK,
        }
    )


def _attention_is_quantized(model: ModelFacts) -> bool:
    """Absorbed decode needs ``kv_b_proj`` in 16 bits: views of it, or copies where it is quantized."""
    return any(part.precision not in PLAIN_PRECISIONS for part in model.parts("attention"))


def activation_bytes(stack: ResolvedStack, model: ModelFacts, spec: StackSpec, version: str) -> int:
    """Bytes of the largest pass on one rank: hidden states, experts' and attention's buffers, logits.

    The experts' workspace stays allocated while attention runs, so the two are added (v1/worker/workspace.py).
    """
    tokens = (stack.serving.chunked_prefill_tokens.value or GPU_PREFILL_TOKENS) + draft_slots(stack, spec, version)
    shared = spec.parallel.tensor // spec.parallel.attention_data
    size = FIXED_ACTIVATION_BYTES + 4 * tokens * model.hidden * 2
    size += _mlp_bytes(model, tokens, spec) + _attention_bytes(model, tokens, shared)
    rows = group_requests(stack, spec, 1) * (1 + (stack.speculation.num_draft_tokens.value or 0))
    size += 2 * rows * model.vocab * 4
    return size + (MULTIMODAL_BYTES if model.multimodal else 0)


def _mlp_bytes(model: ModelFacts, tokens: int, spec: StackSpec) -> int:
    """Gate and up, their product, and the experts' outputs before they are summed (fused_moe/modular_kernel.py).

    Attention groups gather all their tokens for the experts, and add up what comes out before they scatter it
    (distributed/device_communicators/all2all.py). Where experts are whole, so are the rows of a token; their number
    does not depend on how many of its experts a rank has (fused_moe/experts/triton_moe.py, ``workspace_shapes``).
    """
    ranks, groups = spec.parallel.tensor, spec.parallel.attention_data
    dense = 3 * tokens * model.intermediate * 2 * groups // ranks
    if model.moe is None:
        return dense
    rows = tokens * groups * model.moe.experts_per_token
    width = model.moe.expert_width * spec.parallel.expert // ranks
    gathered = 2 * tokens * groups * model.hidden * 2 if groups > 1 else 0
    return max(dense, rows * 2 * (max(2 * width, model.hidden) + width) + gathered)


def _attention_bytes(model: ModelFacts, tokens: int, ranks: int) -> int:
    """Queries, keys, values and outputs of one layer; for MLA also the expanded context of chunked prefill."""
    attention = model.attention
    heads = max(1, attention.heads // ranks)
    if attention.kind != "mla":
        kv_heads = max(1, attention.kv_heads // ranks)
        return tokens * (2 * heads + 2 * kv_heads) * attention.head_dim * 2
    expanded = attention.qk_nope_head_dim + attention.v_head_dim
    latent = attention.kv_lora_rank + attention.qk_rope_head_dim
    chunk = tokens * heads * (2 * attention.head_dim + 2 * attention.v_head_dim) * 2
    return chunk + MLA_WORKSPACE_TOKENS * (heads * expanded + latent) * 2


def graph_bytes(stack: ResolvedStack, model: ModelFacts, node: NodeFacts, engine: EngineFacts, spec: StackSpec) -> int:
    """CUDA graphs: vLLM captures 1, 2, 4, then every 8 tokens to 256 and every 16 beyond, up to twice the tokens that
    all running requests of a group decode, at most 512 (1024 on SM100 from 0.33) (config/vllm.py
    ``_set_cudagraph_sizes``).
    """
    if stack.serving.cuda_graphs.value is False:
        return 0
    query = 1 + (stack.speculation.num_draft_tokens.value or 0)
    limit = 1024 if node.sm in BLACKWELL and at_least(engine.version, "0.33") else 512
    batch = stack.serving.cuda_graph_max_batch.value
    tokens = batch * query if batch else min(2 * group_requests(stack, spec, limit) * query, limit)
    sizes = 3 + min(tokens, 255) // 8 + max(0, tokens - 256) // 16
    return GRAPH_BASE_BYTES + sizes * model.layers * GRAPH_BYTES_A_LAYER
