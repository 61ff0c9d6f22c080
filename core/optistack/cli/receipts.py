"""The receipts of a deployment, one for each replica, as they are kept beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from optistack.files import write_whole
from optistack.verify.receipt import Receipt, Status

_RECEIPTS = TypeAdapter(tuple[Receipt, ...])


def save_receipts(receipts: Sequence[Receipt], path: Path) -> None:
    write_whole(path, _RECEIPTS.dump_json(tuple(receipts), indent=1).decode())


def read_receipts(path: Path) -> tuple[Receipt, ...]:
    """The receipts at ``path``; none when there is no file that can be read, or one of another optistack."""
    try:
        return _RECEIPTS.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return ()


def failed_checks(receipts: Iterable[Receipt]) -> list[str]:
    """The checks that failed on any replica."""
    return sorted({r.id for receipt in receipts for r in receipt.results if r.status is Status.FAIL})


def failure(receipts: Iterable[Receipt], whose: str) -> str:
    """One sentence on receipts that did not pass; ``whose`` is what was promised (``the plan``)."""
    failed = failed_checks(receipts)
    if failed:
        return f"The engine does not do what {whose} says: {', '.join(failed)}."
    return f"Nothing of what {whose} says could be proven: no engine that optistack knows answers there."
