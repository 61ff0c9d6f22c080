"""A receipt: what was asked, what the engine says, the proof."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import LONGEST_ALIGNED, Entries, heading, indented, joined, reason
from optistack.verify.receipt import CheckResult, Receipt, Status

ORDER = (Status.PASS, Status.UNPROVEN, Status.FAIL)
STYLES = {Status.PASS: "green", Status.FAIL: "bold red", Status.UNPROVEN: "yellow"}


def receipt_view(receipt: Receipt, *, wide: bool) -> Iterator[RenderableType]:
    """What passed first, what failed last, where the eye is."""
    yield heading(f"Receipt of {receipt.stack}", _where(receipt))
    entries = Entries(wide=wide)
    for result in sorted(receipt.results, key=lambda result: ORDER.index(result.status)):
        cells = [Text(result.status.value, STYLES[result.status]), Text(result.id, "bold")]
        cells.append(Text(result.promised_by, "cyan"))
        claim = Text(_claim(result))
        if wide or len(claim) <= LONGEST_ALIGNED:
            cells.append(claim)
            claim = Text()
        entries.add(cells, [claim, reason(result.proof), Text(result.why)])
    yield from entries.render()
    for dropped in receipt.dropped:
        left_out = f"left out: {dropped.plugin}, by rule {dropped.rule}: {dropped.message}"
        yield indented(Text(left_out, "yellow"))
    yield indented(verdict(receipt))


def verdict(receipt: Receipt) -> Text:
    """One line: ``12 pass, 0 fail, 2 unproven``."""
    style = "bold green" if receipt.passed else "bold red"
    return Text(counts(receipt), style=style)


def counts(receipt: Receipt) -> str:
    text = ", ".join(f"{receipt.count(status)} {status.value}" for status in Status)
    return joined([text, f"{len(receipt.dropped)} left out" if receipt.dropped else ""])


def _where(receipt: Receipt) -> str:
    engine = f"{receipt.backend} {receipt.engine_version} at {receipt.endpoint}"
    if receipt.replica is None:
        engine = f"the front of {engine}"
    return joined([engine, f"plan {receipt.plan_hash[:12]}", receipt.verified_at])


def _claim(result: CheckResult) -> str:
    """``asked``, and what the engine says where that is something else."""
    if result.status is Status.PASS and result.asked == result.engine_says:
        return result.asked
    return f"{result.asked} → {result.engine_says}"
