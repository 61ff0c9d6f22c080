"""What a checkpoint's components are made of, by form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from optistack_quant_nvfp4.convert.checkpoint import Checkpoint
from optistack_quant_nvfp4.convert.scope import WORDS

if TYPE_CHECKING:
    from rich.table import Table

_WORD = {component: word for word, component in WORDS.items()}


def parts(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """One for each component and precision, largest first: layers, parameters, bytes, and how many layers NVFP4 could
    pack. Scales count as bytes of their layer."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for layer in checkpoint.layers.values():
        component = _WORD[layer.component]
        one = found.setdefault(
            (component, layer.word),
            {"component": component, "precision": layer.word, "layers": 0, "packable": 0, "parameters": 0, "bytes": 0},
        )
        one["layers"] += 1
        one["packable"] += layer.form in ("plain", "fp8", "int4") and layer.packable
        one["parameters"] += layer.values
        one["bytes"] += layer.bytes
    return sorted(found.values(), key=lambda one: -int(one["bytes"]))


def part_table(rows: Sequence[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(("component", "precision", "layers", "packable", "parameters", "GiB")):
        table.add_column(column, justify="left" if number < 2 else "right")
    for one in rows:
        table.add_row(
            one["component"],
            one["precision"],
            str(one["layers"]),
            str(one["packable"]),
            f"{one['parameters']:,}",
            f"{one['bytes'] / 2**30:.3f}",
        )
    return table
