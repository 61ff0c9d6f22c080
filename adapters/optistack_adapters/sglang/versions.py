"""What differs between the supported versions of SGLang, as data.

The parsers of 0.5.17 to 0.5.23 were run one by one; code was compared in their wheels.
"""

from __future__ import annotations

from optistack.versions import at_least

SUPPORTED = ">=0.5.17,<0.5.24"
DEFAULT = "0.5.23"

SINCE = {
    "draft-kv-dtype": "0.5.18",
    "media-reservation": "0.5.18",
    "own-variables": "0.5.19",
    "attention-data-flag": "0.5.22",
    "draft-with-attention-data": "0.5.23",
}
"""The first version that has it.

``draft-kv-dtype``             ``--speculative-draft-kv-cache-dtype``; before, the draft's KV has the target's dtype
``media-reservation``          a multimodal model's embedding cache is kept out of the KV pool
                               (mem_cache/kv_cache_configurator.py, ``mm_runtime_reservation_gb``)
``own-variables``              ``SGLANG_EXPOSE_OWN_ENV_VARS`` puts the engine's variables into ``/server_info``
``attention-data-flag``        ``--attn-dp-size``; before, ``--enable-dp-attention --dp-size``
``draft-with-attention-data``  DFLASH with data-parallel attention (arg_groups/speculative_hook.py, ``_handle_dflash``)
"""


def has(feature: str, version: str) -> bool:
    """Whether ``version`` has ``feature``, a key of :data:`SINCE`."""
    return at_least(version, SINCE[feature])
