"""What is known about combinations in vLLM, by domain."""

from optistack.rules import Rule
from optistack_adapters.vllm.rules.attention import ATTENTION_RULES
from optistack_adapters.vllm.rules.by_hand import BY_HAND_RULES
from optistack_adapters.vllm.rules.connectors import CONNECTOR_RULES
from optistack_adapters.vllm.rules.cpu import CPU_RULES
from optistack_adapters.vllm.rules.drafts import DRAFT_RULES
from optistack_adapters.vllm.rules.kv import KV_RULES
from optistack_adapters.vllm.rules.layout import LAYOUT_RULES
from optistack_adapters.vllm.rules.scheduling import SCHEDULING_RULES
from optistack_adapters.vllm.rules.speculation import SPECULATION_RULES
from optistack_adapters.vllm.rules.tiers import TIER_RULES
from optistack_adapters.vllm.rules.weights import WEIGHT_RULES

RULES: tuple[Rule, ...] = (
    *CPU_RULES,
    *KV_RULES,
    *WEIGHT_RULES,
    *ATTENTION_RULES,
    *SCHEDULING_RULES,
    *SPECULATION_RULES,
    *DRAFT_RULES,
    *TIER_RULES,
    *CONNECTOR_RULES,
    *LAYOUT_RULES,
    *BY_HAND_RULES,
)

__all__ = ["RULES"]
