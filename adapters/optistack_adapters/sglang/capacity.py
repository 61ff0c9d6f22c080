"""How many requests and CUDA graphs one scheduler of a replica gets, from the resolved settings."""

from __future__ import annotations

from optistack.memory.kv import attention_ranks
from optistack.settings.resolved import ResolvedStack
from optistack.stack.spec import StackSpec
from optistack_adapters.sglang.defaults import RUNNING_REQUESTS

DP_LM_HEAD = "--enable-dp-lm-head"


def running_requests(stack: ResolvedStack) -> int:
    """Requests that decode at the same time, over all attention groups."""
    return stack.serving.max_running_requests.value or RUNNING_REQUESTS


def graph_batch(stack: ResolvedStack, spec: StackSpec) -> int:
    """The largest decode batch with a CUDA graph: all running requests of an attention group unless somebody says.

    Groups pad a batch to a multiple of their GPUs, and only such are captured (model_executor/runner/
    base_cuda_graph_runner.py, ``get_batch_sizes_to_capture``).
    """
    said = stack.serving.cuda_graph_max_batch.value
    requests, groups = spec.parallel.of_group(running_requests(stack)), spec.parallel.attention_data
    ranks = attention_ranks(spec.parallel.tensor, groups) if groups > 1 else 1
    return said or -(-requests // ranks) * ranks


def verify_window(stack: ResolvedStack) -> int:
    """Tokens of one request in a decode step: the drafts and the last known token; 1 without speculation."""
    return (stack.speculation.num_draft_tokens.value or 0) + 1 if stack.speculation.method.is_set else 1


def groups_have_heads(stack: ResolvedStack, spec: StackSpec) -> bool:
    """Whether each attention group has an output head of its own (``--enable-dp-lm-head``), as DFLASH demands."""
    asked = stack.speculation.method.value == "dflash" or DP_LM_HEAD in spec.engine_args
    return spec.parallel.attention_data > 1 and asked


def runs_graphs(stack: ResolvedStack) -> bool:
    """Whether decode runs in CUDA graphs, which is SGLang's default on a GPU."""
    return stack.serving.cuda_graphs.value is not False
