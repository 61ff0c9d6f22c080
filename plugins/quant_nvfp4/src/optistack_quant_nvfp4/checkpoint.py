"""What is quantized in a checkpoint, and how. The checkpoint's metadata and headers decide, never its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optistack.facts.model import ComponentName, ModelFacts, Quantization

MODELOPT = "modelopt"
COMPRESSED_TENSORS = "compressed-tensors"
NVFP4 = "nvfp4"

LINEAR: tuple[ComponentName, ...] = ("routed_experts", "shared_experts", "dense_mlp", "attention")
"""The components whose linear layers a recipe may quantize."""


@dataclass(frozen=True)
class Recognised:
    """What the linear layers of a checkpoint are.

    ``method``       who wrote it: ``modelopt``, ``compressed-tensors``, ..., or ``none``
    ``routed``, ``shared``, ``dense``  precision words of routed experts, shared experts, and attention with dense MLPs;
                     ``mixed`` for several, ``None`` where the model has no such part
    ``nvfp4``        the components that are NVFP4, or of which a part is
    ``weight_only``  activations are not quantized (W4A16), so no GPU multiplies in FP4
    """

    method: str
    routed: str | None
    shared: str | None
    dense: str | None
    nvfp4: frozenset[ComponentName]
    weight_only: bool

    @property
    def experts(self) -> bool:
        """Whether routed experts are NVFP4."""
        return "routed_experts" in self.nvfp4

    @property
    def linears(self) -> bool:
        """Whether a linear layer other than a routed expert is NVFP4."""
        return bool(self.nvfp4 - {"routed_experts"})

    @property
    def scope(self) -> str:
        """How far NVFP4 reaches, as a value of option ``scope``; ``none`` where there is no NVFP4."""
        if self.nvfp4 & {"attention", "dense_mlp"}:
            return "linear"
        if "shared_experts" in self.nvfp4:
            return "all-experts"
        return "routed-experts" if self.experts else "none"


def recognise(model: ModelFacts) -> Recognised:
    """What the linear layers of ``model`` are."""
    dense = {part.precision for part in (*model.parts("dense_mlp"), *model.parts("attention"))}
    return Recognised(
        method=model.quantization.method if model.quantization else "none",
        routed=model.precision_of("routed_experts"),
        shared=model.precision_of("shared_experts"),
        dense=(dense.pop() if len(dense) == 1 else "mixed") if dense else None,
        nvfp4=frozenset(name for name in LINEAR if any(part.precision == NVFP4 for part in model.parts(name))),
        weight_only=is_weight_only(model.quantization),
    )


def describe(model: ModelFacts) -> str:
    """The checkpoint in a few words: ``modelopt: routed experts nvfp4, shared experts bf16, attention bf16``."""
    words = [f"{name.replace('_', ' ')} {word}" for name in LINEAR if (word := model.precision_of(name))]
    method = model.quantization.method if model.quantization else "not quantized"
    return f"{method}: {', '.join(words)}"


def is_weight_only(quantization: Quantization | None) -> bool:
    """Whether the metadata quantizes weights alone: ModelOpt's ``W4A16_NVFP4``, or no input activations in any group.

    vLLM reads it the same way (``ModelOptNvFp4Config._from_config``); SGLang goes by the algorithm's word.
    """
    if quantization is None:
        return False
    if any(word.upper().startswith("W4A16") for word in quantization.algo):
        return True
    groups = [group for group in (quantization.raw.get("config_groups") or {}).values() if isinstance(group, dict)]
    return bool(groups) and all(group.get("input_activations") is None for group in groups)


def engine_words(quantization: Quantization | None) -> frozenset[str]:
    """The values of ``--quantization`` that agree with the checkpoint; empty when it is not quantized.

    A ModelOpt checkpoint of several precisions has a word of its own on both engines.
    """
    if quantization is None:
        return frozenset()
    if quantization.method != MODELOPT:
        return frozenset({quantization.method})
    mixed = str(quantization.raw.get("quant_algo") or "").upper() == "MIXED_PRECISION"
    return frozenset({"modelopt_mixed" if mixed else "modelopt_fp4"})
