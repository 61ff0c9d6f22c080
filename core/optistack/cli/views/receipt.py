"""A receipt: what was asked, what the engine says, the proof."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import columns, heading, indented, joined
from optistack.verify.receipt import CheckResult, Receipt, Status

STYLES = {Status.PASS: "green", Status.FAIL: "bold red", Status.UNPROVEN: "yellow"}


def receipt_view(receipt: Receipt, *, wide: bool) -> Iterator[RenderableType]:
    yield heading(f"Receipt of {receipt.stack}", _where(receipt))
    table = columns(None, None if wide else 34, None if wide else 18, None, None if wide else 100)
    order = list(Status)
    for result in sorted(receipt.results, key=lambda result: order.index(result.status), reverse=False):
        table.add_row(
            Text(result.status.value, style=STYLES[result.status]),
            result.id,
            _claim(result),
            result.promised_by,
            _proof(result, wide=wide),
        )
    yield indented(table)
    for dropped in receipt.dropped:
        yield Text(f"  left out: {dropped.plugin}, by rule {dropped.rule}: {dropped.message}", style="yellow")
    yield verdict(receipt)


def verdict(receipt: Receipt) -> Text:
    """One line: ``12 pass, 0 fail, 2 unproven``."""
    style = "bold green" if receipt.passed else "bold red"
    return Text(f"  {counts(receipt)}", style=style)


def counts(receipt: Receipt) -> str:
    text = ", ".join(f"{receipt.count(status)} {status.value}" for status in Status)
    return joined([text, f"{len(receipt.dropped)} left out" if receipt.dropped else ""])


def _where(receipt: Receipt) -> str:
    engine = f"{receipt.backend} {receipt.engine_version} at {receipt.endpoint}"
    return joined([engine, f"plan {receipt.plan_hash[:12]}", receipt.verified_at])


def _claim(result: CheckResult) -> str:
    """``asked``, and what the engine says where that is something else."""
    if result.status is Status.PASS and result.asked == result.engine_says:
        return result.asked
    return f"{result.asked} → {result.engine_says}"


def _proof(result: CheckResult, *, wide: bool) -> Text:
    gap = "  " if wide else "\n"
    return Text.assemble((result.proof, "dim"), f"{gap}{result.why}" if result.why else "")
