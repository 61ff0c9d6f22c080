"""optistack's words and SGLang's for the same thing, both ways."""

from __future__ import annotations

ALGORITHMS = {
    "dflash": "DFLASH",
    "dspark": "DSPARK",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "nextn": "NEXTN",
    "ngram": "NGRAM",
    "standalone": "STANDALONE",
}
CHAINED = ("eagle", "eagle3", "nextn", "standalone")
"""Methods that draft token by token, so that a number of steps has to be said too."""

_TORCH_DTYPES = {
    "torch.bfloat16": "bfloat16",
    "torch.float16": "float16",
    "torch.float32": "float32",
    "torch.float8_e4m3fn": "fp8_e4m3",
    "torch.float8_e5m2": "fp8_e5m2",
}


def kv_word(dtype: str) -> str:
    """``dtype`` for ``--kv-cache-dtype``.

    ``bf16`` and never ``bfloat16``, which trtllm_mla rejects (arg_groups/overrides.py:1215). Half and single precision
    have no word; ``auto`` takes the model's own dtype, and a plan with another one is refused by a rule.
    """
    if dtype == "bfloat16":
        return "bf16"
    return "auto" if dtype in ("float16", "float32") else dtype


def kv_note(dtype: str | None) -> str:
    """A remark where SGLang's word is another one."""
    return f"{kv_word(dtype)} is SGLang's word for {dtype}" if dtype and kv_word(dtype) != dtype else ""


def kv_dtype(word: str) -> str | None:
    """The dtype behind a word of SGLang's or a torch dtype; ``None`` for ``auto``, which says nothing."""
    if word == "auto":
        return None
    return _TORCH_DTYPES.get(word) or ("bfloat16" if word == "bf16" else word)


def algorithm(method: str) -> str:
    """``method`` for ``--speculative-algorithm``. An unknown one may be registered by an SGLang plugin."""
    return ALGORITHMS.get(method, method.upper())


def quantization_word(word: str) -> str:
    """A quantization word for SGLang, whose word for "leave it as it is" is ``unquant``."""
    return "unquant" if word in ("none", "bf16", "bfloat16") else word
