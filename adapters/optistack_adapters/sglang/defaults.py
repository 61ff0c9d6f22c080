"""What the adapter suggests when nobody else says anything.

A plan depends on these, so they are said on the command line instead of being left to the engine, whose defaults change
with the release and with other flags.
"""

from __future__ import annotations

from optistack.context import EngineFacts
from optistack.facts.model import ModelFacts
from optistack.facts.node import GIB, NodeFacts
from optistack.settings import KVLayout, Serving, Settings, Value, suggest
from optistack.stack.spec import StackSpec
from optistack_adapters.sglang import kernels
from optistack_adapters.sglang.traits import CPU_PREFILL_TOKENS

RUNNING_REQUESTS = 48
"""What SGLang itself takes under speculation (arg_groups/speculative_hook.py:437); without, it would take thousands."""

_PREFILL_TOKENS = ((20, 2048), (60, 4096), (160, 8192))
"""Below so many GiB of device memory, so many tokens; 16,384 above (arg_groups/memory_hook.py:91)."""


def defaults(spec: StackSpec, model: ModelFacts, node: NodeFacts, engine: EngineFacts) -> list[Settings | Serving]:
    """Suggestions for ``model`` on ``node``, and the page sizes that the attention kernels allow."""
    chosen, why = kernels.attention_backend(model, node)
    backend = spec.serving.attention_backend or chosen
    return [
        Serving(
            attention_backend=suggest(chosen, why=why, reference="sglang arg_groups/model_override_base.py:277"),
            chunked_prefill_tokens=suggest(
                max(prefill_tokens(node) // spec.parallel.attention_data, kernels.PAGE_TOKENS),
                why=_chunk_why(spec, node),
                reference="sglang arg_groups/memory_hook.py:91",
            ),
            max_running_requests=suggest(
                spec.parallel.for_all_groups(max(RUNNING_REQUESTS, 2 * spec.workload.concurrency)),
                why=f"room for bursts above {spec.workload.concurrency} requests; SGLang's own limit under speculation "
                f"is {RUNNING_REQUESTS}, without it several thousand",
                reference="sglang arg_groups/speculative_hook.py:437",
            ),
        ),
        KVLayout(page_size_tokens=_page_size(backend, model, node)),
    ]


def _chunk_why(spec: StackSpec, node: NodeFacts) -> str:
    if node.device == "cpu":
        return "a CPU is busy with fewer tokens than SGLang's default of 4,096"
    why = "SGLang's size for this much device memory"
    return f"{why}, divided among {spec.parallel.attention_data} groups" if spec.parallel.attention_data > 1 else why


def prefill_tokens(node: NodeFacts) -> int:
    """Tokens of one prefill pass by the memory of the device, as SGLang has it."""
    if node.device == "cpu":
        return CPU_PREFILL_TOKENS
    memory_gib = node.hbm_bytes / GIB
    return next((tokens for below_gib, tokens in _PREFILL_TOKENS if memory_gib < below_gib), 16384)


def _page_size(backend: str, model: ModelFacts, node: NodeFacts) -> Value[int]:
    if node.device == "cpu":
        return suggest(1, why="torch_native gains nothing from larger pages")
    allowed = kernels.allowed_pages((backend,), model, node)
    page = kernels.PAGE_TOKENS if not allowed or kernels.PAGE_TOKENS in allowed else allowed[0]
    if not allowed:
        return suggest(page, why="pages that the host tier can copy at full speed")
    return Value(
        value=page,
        default=True,
        one_of=allowed,
        why=f"{backend} takes pages of {' or '.join(map(str, allowed))}",
        reference="sglang arg_groups/overrides.py:1144",
    )
