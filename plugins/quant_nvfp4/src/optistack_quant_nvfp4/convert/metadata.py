"""The metadata that tells the engines which layers are NVFP4, in both forms that they read.

ModelOpt (``hf_quant_config.json`` and ``quantization_config`` in config.json) quantizes every linear layer that is not
excluded. compressed-tensors has groups with targets and a list of what to ignore.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from typing import Any

from optistack.errors import InputError
from optistack_quant_nvfp4.convert.layer import Layer
from optistack_quant_nvfp4.convert.plan import Plan
from optistack_quant_nvfp4.convert.scope import kind_of

PRODUCER = {"name": "optistack", "version": "0.1.0"}
_NOT_LINEAR = frozenset(("norms", "embeddings"))
_FUSED_NAMES = {"gate_proj": "gate_up_proj", "q_proj": "qkv_proj", "q_a_proj": "fused_qkv_a_proj_with_mqa"}
"""What the engines call the layer that begins with this one."""

_QUANTIZED = frozenset(("nvfp4", "fp8"))
"""Precisions that ModelOpt's metadata states."""

_NVFP4: dict[str, Any] = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}


def modelopt(plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """``hf_quant_config.json``, and ``quantization_config`` of config.json.

    Where FP8 layers stay, the algorithm is ``MIXED_PRECISION``, which names each layer's. InputError when NVFP4 layers
    with and without input scales are mixed, or when an engine's way of reading the exclusions would leave out a
    quantized layer.
    """
    inputs = {one for name, layer in linear_layers(plan) if (one := has_input(plan, name, layer)) is not None}
    if len(inputs) > 1:
        raise InputError(
            "Some NVFP4 layers have input scales and others none, and ModelOpt's metadata has one word for all.",
            fix="Give input scales for all, or write --format compressed-tensors.",
        )
    algo = "NVFP4" if inputs == {True} else "W4A16_NVFP4"
    mixed = _quantized_layers(plan, algo) if "fp8" in plan.words.values() else None
    excluded = list(exclusions(plan))
    check_exclusions(plan, excluded)
    found = plan.checkpoint.facts.quantization
    kv_cache = found.kv_cache_algo if found else None
    stated: dict[str, Any] = {"quant_algo": algo, "group_size": 16}
    if mixed is not None:
        stated = {"quant_algo": "MIXED_PRECISION", "quantized_layers": mixed}
    side: dict[str, Any] = {
        "producer": PRODUCER,
        "quantization": {**stated, "kv_cache_quant_algo": kv_cache, "exclude_modules": excluded},
    }
    group = {"weights": _NVFP4, "input_activations": _NVFP4 if algo == "NVFP4" else None, "targets": ["Linear"]}
    inside: dict[str, Any] = {
        "quant_method": "modelopt",
        **stated,
        **({"config_groups": {"group_0": group}} if mixed is None else {}),
        "ignore": excluded,
        "producer": PRODUCER,
    }
    if kv_cache == "FP8":
        inside["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "dynamic": False}
    return side, inside


def _quantized_layers(plan: Plan, algo: str) -> dict[str, dict[str, Any]]:
    """The algorithm of each quantized layer, of all experts of a block by one name, and of fused layers by theirs, too.

    vLLM (modelopt.py ModelOptMixedPrecisionConfig._resolve_quant_algo) and SGLang (modelopt_quant.py, the same names)
    look a layer up by its own name first.
    """
    entries: dict[str, dict[str, Any]] = {"nvfp4": {"quant_algo": algo, "group_size": 16}, "fp8": {"quant_algo": "FP8"}}
    found: dict[str, dict[str, Any]] = {}
    for name, _ in linear_layers(plan):
        if plan.words[name] in entries:
            block, expert, _ = name.partition(".experts.")
            found |= dict.fromkeys([f"{block}.experts"] if expert else _and_fused(name), entries[plan.words[name]])
    return found


def linear_layers(plan: Plan) -> Iterator[tuple[str, Layer]]:
    """The layers that an engine could quantize: matrices, norms and embeddings left out unless they are NVFP4."""
    for name, layer in plan.checkpoint.layers.items():
        if plan.words[name] == "nvfp4" or (len(layer.shape) == 2 and layer.component not in _NOT_LINEAR):
            yield name, layer


def has_input(plan: Plan, name: str, layer: Layer) -> bool | None:
    """Whether an NVFP4 layer has an input scale afterwards; None for any other layer."""
    if plan.words[name] != "nvfp4":
        return None
    if name in plan.chosen:
        return name in plan.scales
    return "input_scale" in layer.tensors or "input_global_scale" in layer.tensors


def exclusions(plan: Plan) -> Iterator[str]:
    """Every linear layer that is not quantized: names, one pattern for all experts of a block, and always the head.

    Layers that the engines fuse are there by the fused name, too, for SGLang looks for that alone.
    """
    blocks: dict[str, set[str]] = {}
    head = False
    for name, layer in linear_layers(plan):
        word = plan.words[name]
        block, expert, _ = name.partition(".experts.")
        head = head or layer.component == "head"
        if expert:
            blocks.setdefault(f"{block}.experts", set()).add(word)
        elif word not in _QUANTIZED:
            yield from _and_fused(name)
    for block, words in blocks.items():
        if len(words) > 1 and not words.isdisjoint(_QUANTIZED):
            raise InputError(
                f"Experts of {block} would be {' and '.join(sorted(words))}, and the engines run them as one.",
                fix="Take all of them into the scope, or none.",
            )
        if words.isdisjoint(_QUANTIZED):
            yield f"{block}*"
    if not head:
        yield "lm_head"


def _and_fused(name: str) -> Iterator[str]:
    """``name``, and after the first part of a fused layer the engines' name for the whole."""
    yield name
    parent, _, last = name.rpartition(".")
    if last in _FUSED_NAMES:
        yield f"{parent}.{_FUSED_NAMES[last]}"


def check_exclusions(plan: Plan, excluded: list[str]) -> None:
    """InputError when an engine's matching of ``excluded`` hits a quantized layer."""
    names: dict[str, str] = {}
    for name, _ in linear_layers(plan):
        if plan.words[name] in _QUANTIZED:
            block, expert, _ = name.partition(".experts.")
            for prefix in [f"{block}.experts"] if expert else _and_fused(name):
                names.setdefault(prefix, name)
    for prefix, name in names.items():
        for pattern in excluded:
            if vllm_excludes(prefix, pattern) or sglang_excludes(prefix, pattern):
                raise InputError(
                    f"The engines would take the exclusion {pattern!r} for {name}, too, which is {plan.words[name]}.",
                    fix="Write --format compressed-tensors.",
                )


def vllm_excludes(prefix: str, pattern: str) -> bool:
    """Whether vLLM takes ``pattern`` to exclude module ``prefix``: as part of its name, or as a wildcard.

    layers/quantization/modelopt.py ModelOptQuantConfigBase.is_layer_excluded. It knows fused layers by their parts.
    """
    return pattern in prefix or fnmatch.fnmatchcase(prefix, pattern)


def sglang_excludes(prefix: str, pattern: str) -> bool:
    """Whether SGLang takes ``pattern`` to exclude module ``prefix``: as a wildcard of the name or of one of its parts,
    and MLA's projections by their last part alone, in any layer.

    layers/quantization/modelopt_quant.py ModelOptQuantConfig.is_layer_excluded; it knows no other fused layer's parts.
    """
    if any(fnmatch.fnmatchcase(part, pattern) for part in (prefix, *prefix.split("."))):
        return True
    last = pattern.rpartition(".")[2]
    return last in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj") and last in prefix.rpartition(".")[2]


def compressed_tensors(plan: Plan) -> dict[str, Any]:
    """``quantization_config`` of config.json: one group for each kind of layer, the plain ones ignored."""
    kinds: dict[str, list[str]] = {}
    schemes: dict[str, dict[str, Any]] = {}
    for name, layer in linear_layers(plan):
        scheme = _scheme(plan, name, layer)
        key = repr(scheme)
        kinds.setdefault(key, []).extend([name] if ".experts." in name else _and_fused(name))
        if scheme is not None:
            schemes[key] = scheme
    plain = kinds.pop(repr(None), [])
    if len(schemes) == 1:
        targets = {key: ["Linear"] for key in schemes}
    else:
        everything = {name for names in kinds.values() for name in names} | set(plain)
        targets = {key: compact(kinds[key], everything - set(kinds[key])) for key in schemes}
    ignored = compact(plain, {name for names in kinds.values() for name in names})
    ordered = sorted(schemes.items(), key=lambda item: item[1]["format"])
    formats = {scheme["format"] for scheme in schemes.values()}
    found = plan.checkpoint.facts.quantization
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{number}": {**scheme, "targets": targets[key]} for number, (key, scheme) in enumerate(ordered)
        },
        "ignore": ignored if "lm_head" in plan.checkpoint.layers else [*ignored, "lm_head"],
        "kv_cache_scheme": (found.raw.get("kv_cache_scheme") if found else None),
    }


def compact(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """Targets that match ``names`` and none of ``others``: one expression for every layer and expert where that holds.

    Expressions begin at the layers, for the engines have names of their own for what is above.
    """
    other_kinds = {kind_of(name) for name in others}
    by_kind: dict[str, list[str]] = {}
    for name in names:
        by_kind.setdefault(kind_of(name), []).append(name)
    result: list[str] = []
    for kind, members in by_kind.items():
        start = kind.find("layers.*")
        expression = ".*" + re.escape(kind[start:]).replace(r"\*", r"\d+") + "$"
        compiled = re.compile(expression)
        clash = any(compiled.match(other.replace("*", "0")) for other in other_kinds)
        result.extend(members if start < 0 or clash or len(members) == 1 else [f"re:{expression}"])
    return result


def _scheme(plan: Plan, name: str, layer: Layer) -> dict[str, Any] | None:
    word = plan.words[name]
    if word == "nvfp4":
        weights = {**_NVFP4, "strategy": "tensor_group", "symmetric": True, "scale_dtype": "torch.float8_e4m3fn"}
        inputs = {**weights, "dynamic": "local", "observer": "static_minmax"} if has_input(plan, name, layer) else None
        return {"format": "nvfp4-pack-quantized", "weights": weights, "input_activations": inputs}
    if word == "fp8":
        return _fp8_scheme(layer)
    if word == "int4":
        weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": layer.block[1]}
        return {"format": "pack-quantized", "weights": {**weights, "dynamic": False}, "input_activations": None}
    return None


def _fp8_scheme(layer: Layer) -> dict[str, Any]:
    rows, columns = layer.shape
    weights: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
    inputs: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": True, "strategy": "token"}
    if layer.block == (rows, columns):
        weights["strategy"] = "tensor"
        if "input_scale" in layer.tensors:
            inputs.update(dynamic=False, strategy="tensor")
    elif layer.block == (1, columns):
        weights["strategy"] = "channel"
    else:
        weights.update(strategy="block", block_structure=list(layer.block))
        inputs.update(strategy="group", group_size=layer.block[1])
    return {"format": "float-quantized", "weights": weights, "input_activations": inputs}
