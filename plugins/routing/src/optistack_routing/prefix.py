"""How much of a repeated prompt an engine serves from its prefix cache, and how we ask it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from optistack.versions import at_least

if TYPE_CHECKING:
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.metrics import Metrics

PAGES = 4
"""Pages that the prompt is sure to fill: enough for a hit to differ from the pages that an engine leaves out."""

WORDS = 256
"""The prompt's words at least, for engines with small pages."""

TOKENS_PER_WORD = 5
"""At most: four hexadecimal digits and a space."""

HIT_COUNTERS = {"vllm": "vllm:prefix_cache_hits_total", "sglang": "sglang:cached_tokens_total"}

_DROP_A_PAGE = {
    "vllm": ("eagle", "eagle3", "mtp", "dflash", "dspark"),
    "sglang": ("eagle", "eagle3", "nextn"),
}
_KEEP_IT_SINCE_0_33 = ("dflash", "dspark")


def prompt(page_tokens: int, context_tokens: int | None) -> str:
    """A text that no cache has seen before: random words, at least a token each."""
    words = max(WORDS, PAGES * page_tokens)
    if context_tokens is not None:
        words = min(words, context_tokens // TOKENS_PER_WORD - 1)
    return " ".join(secrets.token_hex(2) for _ in range(max(words, 1)))


def page_tokens(plan: Plan, endpoint: Endpoint, metrics: Metrics) -> int | None:
    """Tokens of a KV page: the engine's own figure, else the plan's."""
    if plan.engine.backend == "sglang":
        said = str((endpoint.get_json("/server_info") or {}).get("page_size"))
    else:
        said = str(metrics.label("vllm:cache_config_info", "block_size"))
    return int(said) if said.isdigit() else plan.stack.kv.page_size_tokens.value


def pages_left_out(plan: Plan) -> int:
    """Pages at the end of a repeated prompt that an engine computes again, at most.

    One, since the last token has to be computed for its logits. vLLM drops another for drafts that read the target's
    hidden states (``use_eagle`` in config/speculative.py), for dflash and dspark until 0.33. Under EAGLE SGLang finds a
    prefix by pairs of tokens, which is one token less and with small pages a page. Measured on vLLM 0.32.0 with 1,193
    tokens and pages of 128: 1,152 cached, and with dflash 1,024.
    """
    method = plan.stack.speculation.method.value
    if method not in _DROP_A_PAGE.get(plan.engine.backend, ()):
        return 1
    if plan.engine.backend == "vllm" and method in _KEEP_IT_SINCE_0_33:
        return 1 if at_least(plan.engine.version, "0.33") else 2
    return 2
