"""Which precision the quantization metadata gives to a module, by its name.

The patterns are written by tools that name modules in different ways (``language_model.model.layers.0``,
``language_model.layers.0``, ``model.layers.0``), and SGLang and vLLM accept all of them, so each module is tried under
all of those names.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Any

from optistack.errors import InputError
from optistack.facts.model import Quantization
from optistack.facts.precision import FORMATS, Format
from optistack.facts.quantization import config_groups

_ALIASES = ("", "language_model.", "model.language_model.")


class _Patterns:
    """A list of module patterns: names (of a module or of one above it), bare parts, wildcards, ``re:`` expressions.

    Real lists have up to tens of thousands of plain names, so those are looked up and only the rest is matched.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._names: set[str] = set()
        self._parts: set[str] = set()
        expressions = []
        for pattern in patterns:
            if pattern.startswith("re:"):
                expressions.append(f"(?:{pattern[3:]})")
            elif any(mark in pattern for mark in "*?["):
                expressions.append(fnmatch.translate(pattern))
            else:
                (self._names if "." in pattern else self._parts).add(pattern)
        try:
            self._expression = re.compile("|".join(expressions)) if expressions else None
        except re.error as error:
            raise InputError(
                f"The quantization metadata has a pattern that is no regular expression ({error}).",
                fix="Correct its ignore list in config.json.",
            ) from None

    def match(self, name: str) -> bool:
        short = name.removeprefix("model.")
        return any(self._match(prefix + form) for prefix in _ALIASES for form in (name, short))

    def _match(self, name: str) -> bool:
        parts = name.split(".")
        if not self._parts.isdisjoint(parts):
            return True
        if any(".".join(parts[:depth]) in self._names for depth in range(2, len(parts) + 1)):
            return True
        return self._expression is not None and self._expression.match(name) is not None


_Rule = tuple[_Patterns | None, Format]


class Scheme:
    """Answers :meth:`format_of` for the modules of one checkpoint. ``plain`` is the format of unquantized weights."""

    def __init__(self, quantization: Quantization | None, plain: Format) -> None:
        self._plain = plain
        self._ignored = _Patterns(quantization.ignored if quantization else ())
        self._rules = _rules(quantization) if quantization else []

    def format_of(self, name: str) -> Format:
        """The format of the quantizable module ``name`` (a linear layer's name as in the checkpoint)."""
        if not self._rules or self._ignored.match(name):
            return self._plain
        for patterns, weights in self._rules:
            if patterns is None or patterns.match(name):
                return weights
        return self._plain


def _rules(quantization: Quantization) -> list[_Rule]:
    raw = quantization.raw
    if quantization.method == "modelopt":
        return _modelopt_rules(quantization)
    if quantization.method == "compressed-tensors":
        return [
            (_targets(group.get("targets") or ["Linear"]), _compressed(group["weights"]))
            for group in config_groups(raw)
            if isinstance(group.get("weights"), dict)
        ]
    if quantization.method in ("fp8", "fbgemm_fp8"):
        return [(None, _fp8(raw.get("weight_block_size")))]
    if quantization.method in ("gptq", "awq", "auto-round", "auto_gptq", "auto_awq"):
        return [(None, _integer(int(raw.get("bits") or raw.get("w_bit") or 4), quantization.group_size or 128))]
    if quantization.method == "mxfp4":
        return [(_Patterns(["re:.*experts.*"]), FORMATS["mxfp4"])]
    raise InputError(
        f"How {quantization.method!r} packs weights is not known, so their size cannot be told from a config alone.",
        fix="Give the checkpoint's folder: its safetensors headers say how large it is.",
    )


def _modelopt_rules(quantization: Quantization) -> list[_Rule]:
    layers = quantization.raw.get("quantized_layers")
    if not isinstance(layers, dict) or not layers:
        return [(None, modelopt_format(algo, quantization.group_size)) for algo in quantization.algo]
    names: dict[Format, list[str]] = {}
    for name, entry in layers.items():
        if isinstance(entry, dict):
            weights = modelopt_format(str(entry.get("quant_algo")), entry.get("group_size"))
            names.setdefault(weights, []).append(name)
    return [(_Patterns(listed), weights) for weights, listed in names.items()]


def modelopt_format(algo: str, group_size: int | None) -> Format:
    """The weight format behind a ModelOpt ``quant_algo`` such as ``NVFP4``, ``FP8`` or ``W4A16_AWQ``."""
    word = algo.upper()
    if "MXFP8" in word:
        return FORMATS["mxfp8"]
    if "MXFP4" in word:
        return FORMATS["mxfp4"]
    if "NVFP4" in word:
        return FORMATS["nvfp4"]._replace(group=group_size or 16)
    if word.startswith(("FP8_PB", "FP8_BLOCK")):
        return _fp8([128, 128])
    if word.startswith("FP8"):
        return FORMATS["fp8"]
    if "INT4" in word or word.startswith("W4A"):
        return _integer(4, group_size or 128)
    if "INT8" in word or word.startswith("W8A"):
        return FORMATS["int8"]
    raise InputError(
        f"ModelOpt's {algo!r} is not a weight format that is known here.",
        fix="Give the checkpoint's folder with its safetensors files.",
    )


def _targets(targets: Iterable[Any]) -> _Patterns | None:
    """None, for all of them, when the class of every linear layer is a target."""
    named = [str(target) for target in targets]
    return None if "Linear" in named else _Patterns(named)


def _compressed(weights: dict[str, Any]) -> Format:
    bits, kind, group = int(weights.get("num_bits") or 8), str(weights.get("type") or "int"), weights.get("group_size")
    if kind == "float" and bits == 4:
        return FORMATS["nvfp4"] if group in (None, 16) else FORMATS["mxfp4"]
    if kind == "float":
        return _fp8(weights.get("block_structure"))
    return _integer(bits, group if isinstance(group, int) and group > 0 else 0)


def _fp8(block: Any) -> Format:
    """FP8, with an FP32 scale for each block (128x128 in DeepSeek-V3's own release) if the metadata has blocks."""
    if isinstance(block, list) and len(block) == 2:
        return FORMATS["fp8"]._replace(group=int(block[0]) * int(block[1]), scale_bytes=4)
    return FORMATS["fp8"]


def _integer(bits: int, group: int) -> Format:
    if bits not in (4, 8):
        return Format(f"int{bits}", bits, group=group, scale_bytes=2 if group else 0)
    return FORMATS[f"int{bits}"]._replace(group=group, scale_bytes=2 if group else 0)
