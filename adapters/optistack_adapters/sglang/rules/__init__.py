"""What is known about combinations on SGLang, one module a domain. Lines are of sglang 0.5.23 unless said otherwise."""

from optistack.rules import Rule
from optistack_adapters.sglang.rules.attention import RULES as ATTENTION
from optistack_adapters.sglang.rules.by_hand import RULES as BY_HAND
from optistack_adapters.sglang.rules.cache_modes import RULES as CACHE_MODES
from optistack_adapters.sglang.rules.cpu import RULES as CPU
from optistack_adapters.sglang.rules.drafting import RULES as DRAFTING
from optistack_adapters.sglang.rules.kernel_choices import RULES as KERNEL_CHOICES
from optistack_adapters.sglang.rules.kv import RULES as KV
from optistack_adapters.sglang.rules.moe import RULES as MOE
from optistack_adapters.sglang.rules.serving import RULES as SERVING
from optistack_adapters.sglang.rules.speculation import RULES as SPECULATION
from optistack_adapters.sglang.rules.storage import RULES as STORAGE
from optistack_adapters.sglang.rules.tiers import RULES as TIERS
from optistack_adapters.sglang.rules.weights import RULES as WEIGHTS

RULES: tuple[Rule, ...] = (
    *CPU,
    *WEIGHTS,
    *MOE,
    *KV,
    *ATTENTION,
    *KERNEL_CHOICES,
    *SPECULATION,
    *DRAFTING,
    *TIERS,
    *STORAGE,
    *CACHE_MODES,
    *SERVING,
    *BY_HAND,
)

__all__ = ["RULES"]
