"""What a case comes to, and the figures that it came to it by."""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from pydantic import BaseModel, ConfigDict


class Outcome(StrEnum):
    """``inconclusive``: the suite is too small or the model too weak to tell. ``skipped``: nothing to judge here.

    The order is that of severity, worst first.
    """

    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    PASS = "pass"
    SKIPPED = "skipped"


class Figure(BaseModel):
    """A measured value beside what it is judged by.

    ``threshold`` is the bound it is held against (None: shown only), ``relation`` how (``<=``, ``>=``), ``floor`` the
    noise floor measured in the same run, ``n`` the sample size.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    value: float
    unit: str = ""
    relation: str = ""
    threshold: float | None = None
    floor: float | None = None
    n: int | None = None


class CaseResult(BaseModel):
    """One case. ``id`` is stable: ``lossless/kl-of-prefix-hit``; ``why`` is one line or a few.

    ``known`` is the rule that explains a failure, where there is one; it excuses nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    tier: int
    summary: str
    outcome: Outcome
    why: str = ""
    known: str = ""
    figures: tuple[Figure, ...] = ()
    duration_s: float = 0.0


class InconclusiveError(Exception):
    """A case cannot tell; the message says what would."""


def inconclusive(reason: str) -> NoReturn:
    """End the case as INCONCLUSIVE."""
    __tracebackhide__ = True
    raise InconclusiveError(reason)


def worst(outcomes: list[Outcome]) -> Outcome:
    """The verdict over ``outcomes``: one failure fails, else one doubt is doubt; SKIPPED when nothing was judged."""
    return min(outcomes, key=list(Outcome).index, default=Outcome.SKIPPED)
