"""The checkpoint that is read: its tensors, and the layers that they make up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from optistack.errors import InputError
from optistack.facts.checkpoint import load_model
from optistack.facts.model import ComponentName, ModelFacts
from optistack.facts.quantization import packed_bits
from optistack.facts.safetensors import Tensor, shards_of
from optistack.facts.tensors import components
from optistack_quant_nvfp4.convert.layer import OWN_LEAVES, WEIGHT_LEAVES, Layer, recognise
from optistack_quant_nvfp4.convert.tensor_file import Place, places_in

KNOWN_METHODS = ("modelopt", "compressed-tensors", "fp8", "fbgemm_fp8")
_EVERY_LAYER = 1_000_000


@dataclass(frozen=True)
class Checkpoint:
    """``places`` has every tensor, file after file in the order of their data."""

    facts: ModelFacts
    folder: Path
    files: tuple[Path, ...]
    places: Mapping[str, Place]

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """Every module with a weight, by name, norms and embeddings among them."""
        raw = self.facts.quantization.raw if self.facts.quantization else {}
        block, bits = _fp8_block(raw), packed_bits(self.facts.quantization)
        modules: dict[str, dict[str, Place]] = {}
        for name, place in self.places.items():
            module, _, leaf = name.rpartition(".")
            if leaf in OWN_LEAVES:
                modules.setdefault(module, {})[leaf] = place
        return {
            module: recognise(module, tensors, *self.place_of(module), block, bits)
            for module, tensors in modules.items()
            if any(leaf in tensors for leaf in WEIGHT_LEAVES)
        }

    def place_of(self, module: str) -> tuple[ComponentName, ComponentName]:
        """The component of ``module``, and what it is inside the draft where it is of the draft."""
        head, expert, _ = module.partition(".experts.")
        block = f"{head}.experts.0.w" if expert else module
        component = _component(block, self.facts.layers)
        return component, _component(block.removeprefix("mtp."), _EVERY_LAYER) if component == "mtp" else component

    def tensor_bytes(self) -> int:
        """Bytes of the largest tensor."""
        return max(place.bytes for place in self.places.values())


@lru_cache(maxsize=65536)
def _component(module: str, layers: int) -> ComponentName:
    return components({f"{module}.weight": Tensor("BF16", (1,), 2)}, layers)[0].name


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in ``folder``, its files checked as far as their headers tell.

    InputError when a file is missing, cut off or damaged, when there are no weights, and when the metadata names a
    quantization that is not known, which is then shown.
    """
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}.", fix="Give the folder of a Hugging Face checkpoint.")
    facts = load_model(str(folder))
    files = shards_of(folder)
    if not files:
        raise InputError(f"{folder} has no safetensors files.", fix="Give a checkpoint with its weights.")
    check_known(facts)
    places: dict[str, Place] = {}
    for file in files:
        for name, place in places_in(file).items():
            if name in places:
                raise InputError(
                    f"Tensor {name!r} is in {places[name].file.name} and in {file.name} of {folder}.",
                    fix="Download the checkpoint again.",
                )
            places[name] = place
    return Checkpoint(facts, folder, files, places)


def check_known(facts: ModelFacts) -> None:
    """InputError, with the metadata, when the quantization of ``facts`` is in none of the forms that can be read."""
    found = facts.quantization
    if found is None:
        return
    refused = found.method not in KNOWN_METHODS or bool(found.raw.get("transform_config"))
    if refused:
        shown = json.dumps(found.raw, ensure_ascii=False)
        raise InputError(
            f"The weights of {facts.source} are in a form that is not known here ({found.method}): "
            f"{shown[:600]}{'...' if len(shown) > 600 else ''}.",
            fix=f"Give a checkpoint that is not quantized, or one of: {', '.join(KNOWN_METHODS)}.",
        )


def _fp8_block(raw: Mapping[str, object]) -> tuple[int, int]:
    """The block of FP8 scales by the metadata; 128x128, DeepSeek's, where it does not say."""
    said = [raw.get("weight_block_size")]
    groups = raw.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        said.append(weights.get("block_structure") if isinstance(weights, dict) else None)
    for one in said:
        if isinstance(one, list) and len(one) == 2 and all(isinstance(side, int) and side > 0 for side in one):
            return one[0], one[1]
    return 128, 128
