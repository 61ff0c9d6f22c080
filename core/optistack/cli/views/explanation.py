"""An explanation."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import columns, heading, indented
from optistack.explain import Explanation


def explanation_view(explanation: Explanation, *, wide: bool) -> Iterator[RenderableType]:
    yield heading(explanation.topic, explanation.kind)
    table = columns(None, None if wide else 100)
    for label, text in explanation.facts:
        table.add_row(Text(label, "cyan"), text)
    yield indented(table)
