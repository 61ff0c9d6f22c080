"""Which layers are converted: components by name, groups of them, or patterns of module names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import get_args

from optistack.errors import InputError, nearest
from optistack.facts.model import ComponentName
from optistack_quant_nvfp4.checkpoint import LINEAR
from optistack_quant_nvfp4.convert.checkpoint import Checkpoint
from optistack_quant_nvfp4.convert.layer import NVFP4_BLOCK, Layer

WORDS = {("draft" if name == "mtp" else name.replace("_", "-")): name for name in get_args(ComponentName)}
"""Component by the word for it."""

NO_SCOPE = {
    "norms": "norms are vectors, which NVFP4 cannot pack",
    "other": "it is whatever belongs to no component, and layers of it are named by a pattern",
}
"""Components that no scope means, and why."""

GROUPS: dict[str, tuple[ComponentName, ...]] = {
    "all-experts": ("routed_experts", "shared_experts"),
    "linear": LINEAR,
}
"""Several components in one word, the words of option ``scope`` of the plugin."""

SCOPES = (*GROUPS, *(word for word in WORDS if word not in NO_SCOPE))
"""The words that may be given as a scope."""

FUSED = (("gate_proj", "up_proj"), ("w1", "w3"), ("q_proj", "k_proj", "v_proj"), ("q_a_proj", "kv_a_proj_with_mqa"))
"""Layers of one parent that the engines run as one, with one global scale (vLLM and SGLang, ``packed_modules_mapping``
and ``stacked_params_mapping`` of their models)."""

LEFT_OUT = re.compile(r"\.kv_b_proj$|\.indexer\.|conv1d$")
"""Of attention, what a component's word leaves out. SGLang splits MLA's kv_b_proj into two matrices of its own and
knows no packed form of it (models/deepseek_common/deepseek_weight_loader.py post_load_weights)."""


def choose(checkpoint: Checkpoint, scope: Sequence[str], exclude: Sequence[str] = ()) -> dict[str, Layer]:
    """The layers to convert, by name. A layer that is NVFP4 already is passed over.

    InputError when a word is unknown or matches nothing, with the nearest names; when a layer cannot be packed or is in
    no known form; and when a layer that the engines fuse with another would be converted without it.
    """
    if not scope:
        raise InputError("No scope is given.", fix=f"Give --scope with some of: {', '.join(SCOPES)}.")
    chosen: dict[str, Layer] = {}
    for word in scope:
        found = _matches(checkpoint, word)
        if not found:
            raise _nothing(checkpoint, word)
        chosen.update({layer.name: layer for layer in found})
    for pattern in exclude:
        dropped = [name for name in chosen if fnmatch.fnmatchcase(name, pattern)]
        if not dropped:
            fix = nearest(pattern, {kind_of(name) for name in chosen})
            raise InputError(f"--exclude {pattern} matches no layer of the scope.", fix=fix)
        for name in dropped:
            del chosen[name]
    todo = {name: layer for name, layer in chosen.items() if layer.form != "nvfp4"}
    if not todo:
        state = "is NVFP4 already" if chosen else "is excluded"
        raise InputError(
            f"Everything in scope {', '.join(scope)} of {checkpoint.folder} {state}.", fix="Widen the scope."
        )
    _check_shapes(todo.values())
    _check_fused(checkpoint, todo)
    return todo


def fused_with(name: str, known: Iterable[str] | dict[str, Layer]) -> tuple[str, ...]:
    """``name`` and the layers of ``known`` that the engines fuse with it, in the order of the fused matrix."""
    parent, _, last = name.rpartition(".")
    for group in FUSED:
        if last in group:
            return tuple(one for member in group if (one := f"{parent}.{member}") in known)
    return (name,)


def kind_of(name: str) -> str:
    """``name`` with a star for every number: one pattern for all layers and experts."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _matches(checkpoint: Checkpoint, word: str) -> list[Layer]:
    if any(mark in word for mark in "*?[."):
        return [layer for name, layer in checkpoint.layers.items() if fnmatch.fnmatchcase(name, word)]
    if word in NO_SCOPE:
        raise InputError(f"{word!r} is no scope: {NO_SCOPE[word]}.", fix=f"Give some of: {', '.join(SCOPES)}.")
    if word not in SCOPES:
        raise InputError(
            f"{word!r} is no scope.",
            fix=nearest(word, SCOPES) + " A pattern of module names such as '*.mlp.*' is one, too.",
        )
    names = GROUPS.get(word) or (WORDS[word],)
    return [layer for layer in checkpoint.layers.values() if layer.component in names and _by_word(layer)]


def _by_word(layer: Layer) -> bool:
    """Whether the component's word means this layer: matrices alone, and of the draft those of known components."""
    if layer.component == "mtp" and layer.kind not in LINEAR:
        return False
    return len(layer.shape) == 2 and not LEFT_OUT.search(layer.name)


def _nothing(checkpoint: Checkpoint, word: str) -> InputError:
    if any(mark in word for mark in "*?[."):
        return InputError(
            f"Scope {word} matches no layer of {checkpoint.folder}.",
            fix=nearest(word, {kind_of(name) for name in checkpoint.layers}),
        )
    wanted = GROUPS.get(word) or (WORDS[word],)
    whole = next((name for name in checkpoint.places if checkpoint.place_of(name)[0] in wanted), None)
    if whole is not None:
        return InputError(
            f"Scope {word} matches no layer that can be packed in {checkpoint.folder}: it stores {whole} as "
            f"{checkpoint.places[whole].dtype} {list(checkpoint.places[whole].shape)}.",
            fix="Give a checkpoint that stores each expert's and each layer's matrix by itself: in one tensor they are "
            "transposed, interleaved or neither, which the tensor does not tell.",
        )
    has = {layer.component for layer in checkpoint.layers.values()}
    names = [name for name, component in WORDS.items() if component in has and name not in NO_SCOPE]
    return InputError(
        f"Scope {word} matches nothing: {checkpoint.folder} has none.",
        fix=f"It has: {', '.join(names)}.",
    )


def _check_shapes(layers: Iterable[Layer]) -> None:
    for layer in layers:
        if layer.form == "unknown":
            stored = ", ".join(f"{leaf} {place.dtype} {list(place.shape)}" for leaf, place in layer.tensors.items())
            raise InputError(
                f"{layer.name} is stored in a form that is not known here ({stored}).",
                fix=f"Leave it out with --exclude '{kind_of(layer.name)}'.",
            )
        if not layer.packable:
            raise InputError(
                f"NVFP4 cannot pack {layer.name}, which is {list(layer.shape)}: it packs matrices whose rows are a "
                f"multiple of {NVFP4_BLOCK} long.",
                fix=f"Leave it out with --exclude '{kind_of(layer.name)}'.",
            )


def _check_fused(checkpoint: Checkpoint, chosen: dict[str, Layer]) -> None:
    for name in chosen:
        for other in fused_with(name, checkpoint.layers):
            if other not in chosen:
                raise InputError(
                    f"The engines run {name} and {other} as one layer, and only the first is in the scope.",
                    fix="Take both into the scope, or neither.",
                )
