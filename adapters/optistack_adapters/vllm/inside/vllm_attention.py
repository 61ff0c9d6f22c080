"""vLLM's choice of attention kernels, which it makes while it loads a model, asked of its platform beforehand."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

BLOCK_DRAFTERS = ("dflash", "dspark")


class Refused(Exception):
    """vLLM has no kernels for this."""


def choose(config: Any, settled: dict[str, Any], unresolved: dict[str, str]) -> None:
    """Add ``attention`` and ``draft_attention`` to ``settled``, or why not to ``unresolved``.

    Raises Refused, with the platform's words, where it finds no kernels or not those that are asked for.
    """
    with _current(config):
        target = config.model_config
        _add(
            "attention",
            settled,
            unresolved,
            (config, target, config.cache_config.cache_dtype, config.attention_config.backend, False),
        )
        speculative = config.speculative_config
        draft = getattr(speculative, "draft_model_config", None)
        if draft is None or draft is target or speculative.method not in BLOCK_DRAFTERS:
            return
        dtype = getattr(speculative, "kv_cache_dtype", None) or config.cache_config.cache_dtype
        backend = getattr(speculative, "attention_backend", None)
        _add(
            "draft_attention",
            settled,
            unresolved,
            (config, draft, dtype, backend, _both_ways(draft.hf_config)),
        )


def _add(name: str, settled: dict[str, Any], unresolved: dict[str, str], what: tuple[Any, ...]) -> None:
    try:
        settled[name] = _kernels(*what)
    except (ImportError, OSError, AttributeError, TypeError) as error:
        unresolved[name] = "its choice does not run here: " + type(error).__name__ + ": " + str(error)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        words = " ".join(str(error).split())
        if "ModuleNotFoundError" in words or "ImportError" in words:
            unresolved[name] = "its choice does not run here: " + words
            return
        raise Refused(words if name == "attention" else "the draft's attention: " + words) from error


def _both_ways(hf_config: Any) -> bool:
    """Whether any layer of a block drafter attends both ways, by vLLM's own reading."""
    module = importlib.import_module("vllm.model_executor.models.qwen3_dflash")
    ask = getattr(module, "dflash_has_any_non_causal", None)
    return True if ask is None else bool(ask(hf_config))


def _kernels(config: Any, model: Any, dtype: str, backend: Any, non_causal: bool) -> str:
    selector = importlib.import_module("vllm.v1.attention.selector")
    platform = importlib.import_module("vllm.platforms").current_platform
    cache = config.cache_config
    named = {
        "head_size": model.get_head_size(),
        "dtype": model.dtype,
        "kv_cache_dtype": dtype,
        "block_size": cache.block_size if getattr(cache, "user_specified_block_size", True) else None,
        "use_mla": model.use_mla,
        "use_non_causal": non_causal,
        "use_kv_connector": config.kv_transfer_config is not None,
    }
    known = selector.AttentionSelectorConfig._fields
    wanted = selector.AttentionSelectorConfig(**{key: value for key, value in named.items() if key in known})
    chosen = platform.get_attn_backend_cls(
        backend,
        attn_selector_config=wanted,
        num_heads=model.get_num_attention_heads(config.parallel_config),
    )
    module, _, name = chosen.rpartition(".")
    return str(getattr(importlib.import_module(module), name).get_name())


@contextlib.contextmanager
def _current(config: Any) -> Any:
    with importlib.import_module("vllm.config").set_current_vllm_config(config):
        yield
