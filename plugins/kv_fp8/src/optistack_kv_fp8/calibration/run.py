"""Generate from prompts and watch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from optistack.errors import InputError
from optistack_kv_fp8.calibration.observe import InputAmax, KVStatistics, ObservedCache


@dataclass(frozen=True, slots=True)
class Observed:
    """What a run saw: magnitudes by layer, input amax by module, and tokens written to the cache."""

    kv: KVStatistics
    input_amax: dict[str, float]
    tokens: int
    mla: bool


@contextmanager
def _without_chatter() -> Iterator[None]:
    """No progress bars and no warnings of transformers, which are about its own API; its errors stay."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging

        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()


@_without_chatter()
def load(folder: Path, device: str) -> tuple[Any, Any]:
    """Model and tokenizer of ``folder``, in the checkpoint's dtype.

    InputError when transformers cannot load them, or has to make weights up that the checkpoint lacks.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, __version__

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(
            f"transformers cannot load a tokenizer from {folder}, which prompts need: {' '.join(str(error).split())}",
            fix="Put the files of the model's tokenizer there (tokenizer.json and tokenizer_config.json, most often).",
        ) from error
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype="auto", output_loading_info=True
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise InputError(
            f"transformers cannot load {folder}: {' '.join(str(error).split())}",
            fix=f"Give a whole checkpoint of a model that transformers {__version__} knows.",
        ) from error
    if lacking := sorted(info["missing_keys"]):
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise InputError(
            f"{folder} has no {lacking[0]}{more}: transformers would make them up.", fix="Give a whole checkpoint."
        )
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # one expert at a time, so that each one's input is seen
    return model.to(device).eval(), tokenizer


@_without_chatter()
def observe(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    new_tokens: int,
    per_head: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Observed:
    """Let ``model`` answer each prompt with up to ``new_tokens`` sampled tokens, and count what it caches.

    InputError when it caches NaN or infinity, or nothing.
    """
    config = model.config.get_text_config()
    mla = getattr(config, "kv_lora_rank", None) is not None
    statistics = KVStatistics(per_head=per_head and not mla, mla=mla)
    inputs, tokens = InputAmax(model), 0
    torch.manual_seed(seed)
    for done, prompt in enumerate(prompts):
        ids = _encode(tokenizer, prompt).to(model.device)
        with inputs, torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                past_key_values=ObservedCache(statistics, config),
                max_new_tokens=new_tokens,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            )
        tokens += int(out.shape[1])
        if progress is not None:
            progress(done + 1)
    if not statistics.layers:
        raise InputError("The model wrote nothing to a KV cache.", fix="Calibrate a model with attention.")
    bad = [str(layer) for layer, pair in sorted(statistics.layers.items()) if not all(one.finite for one in pair)]
    if bad:
        raise InputError(
            f"The model caches NaN or infinity in layers {', '.join(bad)}.",
            fix="Check the checkpoint's weights, and its dtype: float16 overflows where bfloat16 does not.",
        )
    return Observed(statistics, inputs.amax, tokens, mla)


def _encode(tokenizer: Any, prompt: str) -> Any:
    if tokenizer.chat_template:
        turn = [{"role": "user", "content": prompt}]
        return tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt", return_dict=True)[
            "input_ids"
        ]
    return tokenizer(prompt, return_tensors="pt")["input_ids"]
