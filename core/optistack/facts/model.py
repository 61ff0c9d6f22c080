"""What a checkpoint is. Everything here is read from its files; a repository's name is no evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from optistack.facts import precision

ComponentName = Literal[
    "routed_experts",
    "shared_experts",
    "dense_mlp",
    "attention",
    "router",
    "norms",
    "embeddings",
    "head",
    "vision",
    "mtp",
    "other",
]


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Attention(_Fact):
    """How attention is built, and so what a KV token is.

    ``kind``      ``mla`` caches one latent of ``kv_lora_rank + qk_rope_head_dim`` values a layer, for all heads;
                  ``gqa`` and ``mha`` cache K and V of ``head_dim`` values for each KV head
    ``head_dim``  of one query head (for MLA ``qk_nope_head_dim + qk_rope_head_dim``)
    ``uncounted`` what the config mentions that the KV arithmetic does not know (linear attention, windows, indexers)
    """

    kind: Literal["mla", "gqa", "mha"]
    heads: int
    kv_heads: int
    head_dim: int
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    uncounted: tuple[str, ...] = ()


class MoE(_Fact):
    """A mixture of experts. ``shared_width`` is the width of all shared experts together."""

    routed_experts: int
    experts_per_token: int
    shared_experts: int
    expert_width: int
    shared_width: int = 0


class Quantization(_Fact):
    """The checkpoint's own statement of how it is quantized.

    ``method``         ``modelopt``, ``compressed-tensors``, ``fp8``, ...
    ``algo``           the words that the metadata uses (``NVFP4``, ``FP8``, ``nvfp4-pack-quantized``, ...)
    ``kv_cache_algo``  ``FP8``, ``NVFP4`` or None
    ``ignored``        patterns of modules that are not quantized
    ``group_size``     values that share a scale, or None
    ``raw``            the metadata itself
    """

    method: str
    algo: tuple[str, ...]
    kv_cache_algo: str | None = None
    ignored: tuple[str, ...] = ()
    group_size: int | None = None
    raw: dict[str, Any] = Field(default_factory=dict, repr=False)


class Component(_Fact):
    """A part of the weights of one precision. ``bytes`` counts scales too, ``parameters`` does not.

    ``replicated`` parts are whole on every tensor-parallel rank: norms, the router, the vision tower and the
    down-projections of MLA (``q_a_proj`` and ``kv_a_proj_with_mqa`` are replicated linears in SGLang 0.5.17 to 0.5.23
    and in vLLM 0.26 to 0.33). One name can occur several times, by precision and by placement.
    """

    name: ComponentName
    parameters: int
    bytes: int
    precision: str
    replicated: bool = False


class ModelFacts(_Fact):
    """A checkpoint, as its files describe it.

    ``source``         the folder or hub id as the user gave it
    ``path``           the folder, or None when only a config is known
    ``config_file``    the config.json that was read
    ``fingerprint``    sha256 that tells this checkpoint from another (see :mod:`optistack.facts.checkpoint`)
    ``evidence``       ``headers`` when components come from safetensors headers, ``config`` when from shapes
    ``layers``         decoder layers; ``dense_layers`` of them have a plain MLP instead of experts
    ``max_context_tokens``  longest sequence that its positions are made for; 0 when the config does not say
    ``kv_scales``      whether it carries calibrated KV scales; None when only a config is known
    ``draft_config``   of a DFlash draft: ``target_layer_ids`` (from 0), ``mask_token_id``, ``block_size`` and whatever
                       else its ``dflash_config`` has; None for any other model
    ``config``         config.json as it is
    """

    source: str
    path: Path | None
    config_file: Path
    fingerprint: str
    evidence: Literal["headers", "config"]
    architecture: str
    model_type: str
    layers: int
    dense_layers: int
    hidden: int
    intermediate: int
    vocab: int
    max_context_tokens: int
    dtype: str
    attention: Attention
    moe: MoE | None
    multimodal: bool
    quantization: Quantization | None
    components: tuple[Component, ...]
    kv_scales: bool | None = None
    draft_config: dict[str, Any] | None = None
    config: dict[str, Any] = Field(repr=False)

    @property
    def parameters(self) -> int:
        """All parameters in the checkpoint."""
        return sum(part.parameters for part in self.components)

    @property
    def weight_bytes(self) -> int:
        """All weights in the checkpoint, as they are stored, in bytes."""
        return sum(part.bytes for part in self.components)

    def parts(self, name: ComponentName) -> tuple[Component, ...]:
        """Every part of component ``name``; empty if the model has none."""
        return tuple(part for part in self.components if part.name == name)

    def parameters_of(self, name: ComponentName) -> int:
        return sum(part.parameters for part in self.parts(name))

    def bytes_of(self, name: ComponentName) -> int:
        return sum(part.bytes for part in self.parts(name))

    def precision_of(self, name: ComponentName) -> str | None:
        """The precision word of component ``name``, ``mixed`` if it has several, None if the model has no such part."""
        words = {part.precision for part in self.parts(name)}
        if not words:
            return None
        return words.pop() if len(words) == 1 else "mixed"

    def bytes_freed(self, name: ComponentName, after: str, *, before: str | None = None) -> int:
        """Bytes freed in all, over every GPU, if component ``name`` went to precision ``after``.

        ``before`` is the precision it has; given, it asks "what if it had been" (shared experts from FP8, say).
        """
        if before is not None:
            return precision.bytes_freed(self.parameters_of(name), before, after)
        return self.bytes_of(name) - precision.format_named(after).bytes_of(self.parameters_of(name))
