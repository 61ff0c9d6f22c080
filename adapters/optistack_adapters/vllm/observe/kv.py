"""KV dtype, page size and how many tokens the pool holds."""

from __future__ import annotations

import math

from optistack.verify.receipt import Observed
from optistack_adapters.vllm.observe.evidence import CACHE_INFO, Evidence

WORDS = {"fp8": "fp8_e4m3"}
"""vLLM's words that differ from ours; ``fp8`` is E4M3 on CUDA and on the CPU."""


def observe_kv(evidence: Evidence) -> dict[str, Observed | None]:
    return {
        "kv.dtype": _dtype(evidence),
        "kv.draft_dtype": _draft_dtype(evidence),
        "kv.scales": _scales(evidence),
        "kv.page_size_tokens": evidence.from_label("block_size"),
        "budget.kv_tokens": _tokens(evidence),
    }


def _dtype(evidence: Evidence) -> Observed | None:
    word = evidence.label("cache_dtype")
    if word is None:
        return None
    proof = f'{CACHE_INFO}{{cache_dtype="{word}"}}'
    if word != "auto":
        return Observed(value=WORDS.get(word, word), proof=proof)
    plain = _dtype_behind_auto(evidence)
    if plain is not None:
        return Observed(value=plain[0], proof=f"{proof} on a checkpoint without quantization, {plain[1]}")
    return Observed(value=None, proof=f"{proof} does not say what it became")


def _dtype_behind_auto(evidence: Evidence) -> tuple[str, str] | None:
    """The model's dtype and where it is said; only a quantized checkpoint makes anything else of ``auto``."""
    dtype = evidence.setting("model_config", "dtype")
    if isinstance(dtype, str) and evidence.setting("model_config", "quantization") is None:
        return dtype.removeprefix("torch."), f"/server_info model_config.dtype = {dtype!r}"
    logged = evidence.from_log("dtype")
    if logged is not None and evidence.from_log("quantization") is None:
        return logged.removeprefix("torch."), f"log: dtype={logged}, quantization=None"
    return None


def _scales(evidence: Evidence) -> Observed | None:
    """vLLM reads KV scales of quantized checkpoints only, and says so where it finds none
    (model_executor/layers/quantization/kv_cache.py); 0.26 can also compute them (``calculate_kv_scales``).
    """
    dtype = _dtype(evidence)
    if dtype is None or not str(dtype.value).startswith("fp8"):
        return None
    if evidence.label("calculate_kv_scales") == "True":
        return Observed(value="computed", proof=f'{CACHE_INFO}{{calculate_kv_scales="True"}}')
    line = evidence.log.unit_scales() if evidence.log else None
    if line is not None:
        return Observed(value="unit", proof=f"log: {line}")
    plain = _dtype_behind_auto(evidence)
    if plain is not None:
        return Observed(value="unit", proof=f"a checkpoint without quantization brings no scales, {plain[1]}")
    if evidence.log is not None and evidence.log.engine_version() is not None:
        return Observed(
            value="checkpoint", proof="log: a quantized checkpoint, and no line about a scaling factor of 1.0"
        )
    return Observed(value=None, proof="only the engine's log says whether the checkpoint's scales were found")


def _draft_dtype(evidence: Evidence) -> Observed | None:
    config = evidence.setting("speculative_config")
    if not isinstance(config, dict):
        return None
    word, proof = config.get("kv_cache_dtype"), "/server_info speculative_config.kv_cache_dtype"
    if isinstance(word, str) and word != "auto":
        return Observed(value=WORDS.get(word, word), proof=f"{proof} = {word!r}")
    target = _dtype(evidence)
    if word is None and target is not None and target.value is not None:
        return Observed(value=target.value, proof=f"{proof} is not set: the target's, {target.proof}")
    return Observed(value=None, proof=f"{proof} = {word!r} does not say what it became")


def _tokens(evidence: Evidence) -> Observed | None:
    """Token slots over all engines of the server (one for each attention group), each of which has a line of its own.
    On every line the blocks are those of all engines together and the tokens are of one (v1/engine/core_client.py,
    ``_apply_ready_response``, 0.26 to 0.33).

    vLLM's own ``kv_cache_size_tokens`` counts how often a request of the longest context fits, partial last pages
    included: ``blocks x L / ceil(L / page)``. Where that is all it differs by, the slots themselves are the figure.
    """
    engines = max(1, len(evidence.metrics.find(CACHE_INFO)))
    blocks, page = evidence.label("num_gpu_blocks"), evidence.label("block_size")
    said, longest = evidence.label("kv_cache_size_tokens"), evidence.models.get("max_model_len")
    times = f" x {engines} engines" if engines > 1 else ""
    if blocks and page and _plain_pool(int(blocks) // engines, int(page), said, longest):
        proof = f'{CACHE_INFO}{{num_gpu_blocks="{blocks}", block_size="{page}", kv_cache_size_tokens="{said}"}}'
        among = f", the blocks of {engines} engines" if engines > 1 else ""
        return Observed(value=int(blocks) * int(page), proof=proof + among)
    if said is None:
        return None
    return Observed(value=int(said) * engines, proof=f'{CACHE_INFO}{{kv_cache_size_tokens="{said}"}}{times}')


def _plain_pool(blocks: int, page: int, said: str | None, longest: object) -> bool:
    if said is None:
        return True
    if not isinstance(longest, int) or longest < 1:
        return int(said) == blocks * page
    return int(said) == int(blocks / math.ceil(longest / page) * longest)
