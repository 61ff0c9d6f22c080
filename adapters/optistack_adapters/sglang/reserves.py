"""Device memory that SGLang takes beside weights and KV: an estimate from the model's shape.

SGLang's own estimate (arg_groups/memory_hook.py:324: 1.5 MiB for each token of a prefill chunk, and 5 to 20 percent off
for a vision tower) is made for any model; for a large mixture of experts over four GPUs it takes several times what a
pass needs. Two published launches bound the figures here: four 96 GB GPUs serve Kimi K2.6 with chunks of 8,192 tokens
and four requests beside 5.7 GiB (--mem-fraction-static 0.94), and four B300 with chunks of 32,768 tokens and 160
requests beside 35 GiB (0.87, https://github.com/sgl-project/sglang/issues/28528).
"""

from __future__ import annotations

from optistack.context import EngineFacts
from optistack.facts.model import ModelFacts
from optistack.facts.node import GIB, MIB, NodeFacts
from optistack.memory.kv import attention_ranks
from optistack.memory.request import EngineReserves
from optistack.settings.resolved import ResolvedStack
from optistack.stack.spec import StackSpec
from optistack_adapters.sglang import versions
from optistack_adapters.sglang.capacity import (
    graph_batch,
    groups_have_heads,
    running_requests,
    runs_graphs,
    verify_window,
)
from optistack_adapters.sglang.defaults import prefill_tokens

ACTIVATION_BYTES = 2
MARGIN = 1.2
"""For allocator rounding, and for what a pass holds beside the tensors that are counted."""

WORKSPACE_BYTES = GIB
"""Attention workspaces of target and draft, up to 512 MiB each (layers/attention/flashinfer_backend.py:431)."""

MLA_PREFIX_TOKENS = 128 * 1024
"""Cached tokens whose latent is expanded to K and V at once in prefill (``SGLANG_MAX_KV_CHUNK_CAPACITY``)."""

MEDIA_CACHE_BYTES = 100 * MIB
"""``SGLANG_VLM_CACHE_SIZE_MB``: embeddings of media, allocated after the KV pool."""

NO_FP4_GATHER = "--disable-flashinfer-cutlass-moe-fp4-allgather"
CONTEXT_BYTES = 600 * MIB
COLLECTIVES_BYTES = 1200 * MIB
UNUSED_BYTES = 512 * MIB
"""Left to the allocator's fragments."""

GRAPH_BASE_BYTES = GIB
GRAPH_BYTES_PER_REQUEST = 2 * MIB
PREFILL_GRAPH_BYTES = 1536 * MIB
"""What SGLang itself reckons for a request of a decode graph, and for MLA prefill graphs, which trtllm_mla does not
have (arg_groups/memory_hook.py, ``reserve_for_graph_mb``; arg_groups/cuda_graph_hook.py:279)."""

CPU_RANK_BYTES = 1536 * MIB
CPU_UNUSED_BYTES = GIB
HOST_PROCESS_BYTES = 3 * GIB
"""0.5.23 on a CPU took 0.7 GB each for the server and the detokenizer, and 1.0 GB for the scheduler beside weights and
KV; a rank with a GPU also holds pinned buffers and CUDA's own host memory."""


def reserves(
    stack: ResolvedStack, model: ModelFacts, node: NodeFacts, engine: EngineFacts, spec: StackSpec
) -> EngineReserves:
    """The reserves of one GPU, or of one rank on a CPU node.

    A vision tower counts as whole on each GPU: its MLPs and its projector are, only its attention is divided
    (models/kimi_k25.py:90, models/kimi_vl_moonvit.py:329).
    """
    activations = int(_activations(stack, model, node, spec) * MARGIN) + media_cache_bytes(model, engine.version)
    method, draft = stack.speculation.method.value, stack.speculation.draft_checkpoint
    layout = {
        "groups_have_heads": groups_have_heads(stack, spec),  # models/deepseek_v2.py, use_attn_tp_group
        "shared_experts_whole": _gathers_in_fp4(stack, model, spec),  # models/deepseek_v2.py, _shared_expert_use_tp1
        "absorbed_mla_copies": True,  # w_kc and w_vc, models/deepseek_common/deepseek_weight_loader.py
        "mtp_loaded": method in ("eagle", "nextn") and not draft.is_set,
    }
    if node.device == "cpu":
        return EngineReserves(
            engine="sglang",
            **layout,
            context_bytes=CPU_RANK_BYTES,
            activations_bytes=activations,
            unused_bytes=CPU_UNUSED_BYTES,
            host_bytes=HOST_PROCESS_BYTES // 2,
            why="estimate of the SGLang adapter",
        )
    return EngineReserves(
        engine="sglang",
        **layout,
        context_bytes=CONTEXT_BYTES,
        collectives_bytes=COLLECTIVES_BYTES if spec.parallel.tensor > 1 else 0,
        graphs_bytes=_graphs(stack, model, spec) if runs_graphs(stack) else 0,
        activations_bytes=activations + WORKSPACE_BYTES,
        unused_bytes=UNUSED_BYTES,
        host_bytes=HOST_PROCESS_BYTES * spec.parallel.tensor,
        why="estimate of the SGLang adapter",
    )


def _gathers_in_fp4(stack: ResolvedStack, model: ModelFacts, spec: StackSpec) -> bool:
    """Whether groups quantize tokens before they gather them, so that shared experts work on a group's own
    (layers/moe/utils.py, ``should_use_flashinfer_cutlass_moe_fp4_allgather``)."""
    kernels = stack.quantization.moe_backend.value == "flashinfer_cutlass" and NO_FP4_GATHER not in spec.engine_args
    fp4 = model.quantization is not None and model.quantization.method == "modelopt"
    fp4 = fp4 and model.precision_of("routed_experts") == "nvfp4"
    return kernels and fp4 and spec.parallel.attention_data > 1 and spec.parallel.expert == spec.parallel.attention_data


def media_cache_bytes(model: ModelFacts, version: str) -> int:
    """Bytes that are kept out of the KV pool for a multimodal model's embeddings."""
    return MEDIA_CACHE_BYTES if model.multimodal and versions.has("media-reservation", version) else 0


def _graphs(stack: ResolvedStack, model: ModelFacts, spec: StackSpec) -> int:
    """A draft has graphs of its own beside those that verify."""
    of_requests = graph_batch(stack, spec) * GRAPH_BYTES_PER_REQUEST * (2 if stack.speculation.method.is_set else 1)
    mla_prefill = model.attention.kind == "mla" and stack.serving.attention_backend.value != "trtllm_mla"
    return GRAPH_BASE_BYTES + of_requests + (PREFILL_GRAPH_BYTES if mla_prefill else 0)


def _activations(stack: ResolvedStack, model: ModelFacts, node: NodeFacts, spec: StackSpec) -> int:
    """Bytes of the largest pass: a prefill chunk through one layer, with an expanded MLA prefix, and a step's logits.

    A token holds six rows of the hidden size (residual, normed, two projections, two buffers of the all-reduce), the
    rows of its heads, and the rows of its MLP: for routed experts one output row of the hidden size and the gate, up
    and product rows for each expert that it goes to. Attention groups gather the tokens of all for the MLP and scatter
    what comes out (layers/dp_attention.py, get_global_dp_buffer); they do so for the head, too, unless each has one.
    """
    gpus, groups = spec.parallel.tensor, spec.parallel.attention_data
    heads = -(-model.attention.heads // attention_ranks(gpus, groups))
    attention = model.attention
    values = attention.v_head_dim or attention.head_dim
    tokens = stack.serving.chunked_prefill_tokens.value or prefill_tokens(node)
    mlp = 3 * model.intermediate // gpus
    if model.moe is not None:
        width = 3 * model.moe.expert_width * spec.parallel.expert // gpus
        mlp = max(mlp, model.moe.experts_per_token * (model.hidden + width))
    row = 6 * model.hidden + heads * 2 * (attention.head_dim + values) + groups * mlp
    row += 2 * groups * model.hidden if groups > 1 else 0
    prefix = 0
    if attention.kind == "mla":
        context = min(MLA_PREFIX_TOKENS, stack.serving.context_tokens.value or model.max_context_tokens)
        prefix = context * heads * (attention.head_dim + attention.qk_nope_head_dim + values)
    requests = running_requests(stack)
    requests = spec.parallel.of_group(requests) if groups_have_heads(stack, spec) else requests
    logits = requests * verify_window(stack) * model.vocab
    return ACTIVATION_BYTES * (tokens * row + prefix) + (4 + ACTIVATION_BYTES) * logits
