"""The draft: what its config.json says, and whether it fits the target.

Formats: https://github.com/z-lab/dflash (``block_size``, ``num_target_layers``, ``dflash_config``). The engines check
some of this while they load, some only when the first token is drafted, and some never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from optistack.errors import PlanRefusedError
from optistack.facts.model import ModelFacts
from optistack.facts.safetensors import read_shard, shards_of

MASK_ID_KEYS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""Where vLLM looks for the mask token's id, in this order (vllm 0.33 v1/worker/gpu/spec_decode/utils.py:90)."""


@dataclass(frozen=True)
class Draft:
    """A DFlash draft. ``captured_layers`` are the target's layers whose hidden states it reads, counted from 0.

    ``mask_token_id`` and ``mask_token`` are what the config names, either may be absent. ``window_tokens`` is the
    sliding window of its windowed layers, None when it has none; ``mixed`` tells that others attend to everything.
    """

    facts: ModelFacts
    block_size: int | None
    captured_layers: tuple[int, ...]
    target_layers: int | None
    target_hidden: int
    mask_token_id: int | None
    mask_token: str | None
    causal: bool
    windowed_layers: int
    window_tokens: int | None

    @property
    def name(self) -> str:
        return self.facts.source

    @property
    def mixed(self) -> bool:
        return 0 < self.windowed_layers < self.facts.layers

    @property
    def num_draft_tokens(self) -> int | None:
        """Tokens proposed in one step: the block less the anchor, the last token already known."""
        return None if self.block_size is None else self.block_size - 1


def read_draft(facts: ModelFacts) -> Draft:
    """The draft that ``facts`` describe. PlanRefusedError when it is no DFlash draft or its config is malformed."""
    nested = facts.draft_config
    if nested is None:
        raise PlanRefusedError(
            f"{facts.source} is not a DFlash draft: {facts.config_file} has no dflash_config and its architecture is "
            f"{facts.architecture or 'not named'}.",
            fix="Give the draft's checkpoint, not a model's.",
        )
    config = facts.config
    found = _Reader(facts, nested, config)
    kinds = [str(kind) for kind in config.get("layer_types") or ()]
    windowed = kinds.count("sliding_attention")
    return Draft(
        facts=facts,
        block_size=found.integer("block_size"),
        captured_layers=found.layers("target_layer_ids"),
        target_layers=found.integer("num_target_layers"),
        target_hidden=found.integer("target_hidden_size") or facts.hidden,
        mask_token_id=next((value for key in MASK_ID_KEYS if (value := found.integer(key)) is not None), None),
        mask_token=found.first("mask_token"),
        causal=bool(found.first("causal", "is_causal")),
        windowed_layers=windowed,
        window_tokens=config.get("sliding_window") if windowed else None,
    )


def check_fit(draft: Draft, target: ModelFacts, *, tensor: int, backend: str) -> None:
    """Raise PlanRefusedError, naming draft and target and every reason, when ``draft`` cannot draft for ``target``.

    ``tensor`` is how many GPUs the draft is divided over.
    """
    reasons = list(_misfits(draft, target, tensor, backend))
    if reasons:
        raise PlanRefusedError(
            f"The draft {draft.name} does not fit the target {target.source}: {'; '.join(reasons)}.",
            fix="Use a draft that was trained for this target.",
        )


def _misfits(draft: Draft, target: ModelFacts, tensor: int, backend: str) -> Iterator[str]:
    facts = draft.facts
    if facts.hidden != target.hidden:
        yield f"its hidden size is {facts.hidden}, the target's is {target.hidden}, whose embedding and head it borrows"
    if draft.target_hidden not in (facts.hidden, target.hidden):
        yield f"it reads hidden states of width {draft.target_hidden}, the target's are {target.hidden} wide"
    if facts.vocab != target.vocab:
        yield f"its vocabulary has {facts.vocab} tokens, the target's {target.vocab}"
    if draft.target_layers is not None and draft.target_layers != target.layers:
        yield f"it was trained for a target of {draft.target_layers} layers, this one has {target.layers}"
    yield from _layer_misfits(draft, target)
    yield from _head_misfits(draft, tensor)
    yield from _mask_misfits(draft, target, backend)
    yield from _projection_misfits(draft, target)


def _layer_misfits(draft: Draft, target: ModelFacts) -> Iterator[str]:
    if not draft.captured_layers:
        yield "its target_layer_ids name no layer of the target to read from"
    outside = [layer for layer in draft.captured_layers if not 0 <= layer < target.layers]
    if outside:
        yield f"it reads layer {outside[0]} of the target, which has layers 0 to {target.layers - 1}"


def _head_misfits(draft: Draft, tensor: int) -> Iterator[str]:
    heads, kv_heads = draft.facts.attention.heads, draft.facts.attention.kv_heads
    if heads % tensor:
        yield f"its {heads} attention heads do not divide over {tensor} tensor-parallel ranks"
    if kv_heads % tensor and tensor % kv_heads:
        yield f"its {kv_heads} KV heads do not divide over {tensor} tensor-parallel ranks"


def _mask_misfits(draft: Draft, target: ModelFacts, backend: str) -> Iterator[str]:
    if draft.mask_token_id is None:
        if draft.mask_token is None:
            yield "its config names no mask token (dflash_config.mask_token_id)"
        elif backend == "vllm":
            yield f"its config names the mask token {draft.mask_token!r} by text only, and vLLM needs mask_token_id"
    elif not 0 <= draft.mask_token_id < target.vocab:
        yield f"its mask token {draft.mask_token_id} is outside the target's vocabulary of {target.vocab}"


def _projection_misfits(draft: Draft, target: ModelFacts) -> Iterator[str]:
    """``fc`` turns the captured states, side by side, into one hidden state: [hidden, captured x target's hidden]."""
    shape = _shape_of(draft.facts, "fc.weight")
    expected = (draft.facts.hidden, len(draft.captured_layers) * target.hidden)
    if shape is not None and draft.facts.quantization is None and shape != expected:
        yield f"its fc.weight is {list(shape)}, and {len(draft.captured_layers)} captured layers need {list(expected)}"


def _shape_of(facts: ModelFacts, tensor: str) -> tuple[int, ...] | None:
    """The shape of ``tensor`` by the safetensors headers; None when there are none or it is not in them."""
    if facts.path is None:
        return None
    for file in shards_of(facts.path):
        for name, found in read_shard(file).tensors.items():
            if name.removeprefix("model.") == tensor:
                return found.shape
    return None


class _Reader:
    """Keys of a draft's config: in ``dflash_config``, else at the top level, as both engines look them up."""

    def __init__(self, facts: ModelFacts, nested: dict[str, Any], config: dict[str, Any]) -> None:
        self._facts, self._nested, self._config = facts, nested, config

    def first(self, *keys: str) -> Any:
        for key in keys:
            for place in (self._nested, self._config):
                if place.get(key) is not None:
                    return place[key]
        return None

    def integer(self, key: str) -> int | None:
        value = self.first(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self._malformed(key, value, "a whole number")
        return value

    def layers(self, key: str) -> tuple[int, ...]:
        value = self.first(key)
        if value is None:
            return ()
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
            raise self._malformed(key, value, "a list of whole numbers")
        return tuple(value)

    def _malformed(self, key: str, value: Any, wanted: str) -> PlanRefusedError:
        return PlanRefusedError(
            f"{self._facts.config_file} says {key} is {value!r}, which is not {wanted}.",
            fix="Download the draft again.",
        )
