"""The lines of a receipt that can be explained, and what makes each pass."""

from __future__ import annotations

import re

from optistack.host import Plugin

RECEIPT_LINES = {
    "engine.version": "the engine says the version that the plan is for",
    "model.served_name": "the engine lists the model under the name of the stack file",
    "budget.kv_tokens": "the engine holds as many KV tokens as planned, within 2%",
    "budget.weight_bytes": "loading the weights, a draft's too, took of a GPU what was planned, within 2% and 0.5 GiB; "
    "SGLang reads it from the GPU's free memory, so another figure proves nothing where other programs are on the GPU",
}
"""Lines of a receipt that are no settings and that no plugin brings."""


def receipt_lines(plugin: Plugin) -> dict[str, str]:
    """The receipt lines of a plugin's probes with what makes each pass, from the tables of its README.

    That is in the description of an installed distribution; empty for a plugin without one.
    """
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        text = str(metadata(plugin.distribution.partition(" ")[0]).json.get("description", ""))
    except (PackageNotFoundError, ValueError):
        return {}
    found = {}
    for row in text.splitlines():
        cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
        if row.startswith("| `") and len(cells) > 1:
            words = re.findall(r"`([^`]+)`", cells[0])
            found.update({word: cells[1] for word in words if word.startswith(f"{plugin.name}/")})
    return found
