"""Bytes of each component before and after."""

from __future__ import annotations

from dataclasses import dataclass

from optistack.facts.model import ComponentName
from optistack_quant_nvfp4.convert.layer import OWN_LEAVES
from optistack_quant_nvfp4.convert.plan import Plan
from optistack_quant_nvfp4.convert.scope import WORDS

_WORD = {component: word for word, component in WORDS.items()}


@dataclass
class Size:
    """One component. ``converted`` of its ``layers`` become NVFP4; ``before`` and ``after`` are precisions."""

    component: str
    layers: int = 0
    converted: int = 0
    before: str = ""
    after: str = ""
    bytes_before: int = 0
    bytes_after: int = 0


def sizes(plan: Plan) -> list[Size]:
    """One for each component that the checkpoint has, largest first."""
    found: dict[ComponentName, Size] = {}
    words: dict[ComponentName, tuple[set[str], set[str]]] = {}

    def of(component: ComponentName) -> Size:
        return found.setdefault(component, Size(_WORD[component]))

    checkpoint = plan.checkpoint
    for name, layer in checkpoint.layers.items():
        one = of(layer.component)
        one.layers += 1
        one.converted += name in plan.chosen
        before, after = words.setdefault(layer.component, (set(), set()))
        before.add(layer.word)
        after.add(plan.words[name])
    for name, place in checkpoint.places.items():
        of(checkpoint.place_of(_module(name))[0]).bytes_before += place.bytes
    for file in plan.files:
        for step in file.steps:
            for output in step.outputs:
                of(checkpoint.place_of(_module(output.name))[0]).bytes_after += output.bytes
    for component, (before, after) in words.items():
        found[component].before = " and ".join(sorted(before))
        found[component].after = " and ".join(sorted(after))
    return sorted(found.values(), key=lambda one: -one.bytes_before)


def _module(name: str) -> str:
    module, _, leaf = name.rpartition(".")
    return module if leaf in OWN_LEAVES else name
