"""``Report``: everything that a run found, as a value; the reports are renderings of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from optistack_conformance.outcomes import CaseResult, Outcome, worst
from optistack_conformance.selection import TIERS

EXIT_CODES = {Outcome.FAIL: 1, Outcome.INCONCLUSIVE: 4}
EXIT_INTERRUPTED = 130


class State(StrEnum):
    """How a run ended: ``interrupted`` by its user, ``incomplete`` because a server was gone."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    INCOMPLETE = "incomplete"


class Subject(BaseModel):
    """What a server was when it was measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    where: str
    engine: str
    engine_version: str
    model: str
    kv_dtype: str | None = None


class Report(BaseModel):
    """``settings`` are those of the selection; ``chat_template_hash`` is None where no template could be read. Of a run
    whose ``state`` is not complete, ``ended`` says why and after how much."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optistack_version: str
    made_at: str
    candidate: Subject
    baseline: Subject | None = None
    settings: dict[str, Any]
    plan_hash: str = ""
    checkpoint_fingerprint: str | None = None
    chat_template_hash: str | None = None
    evals_version: str = ""
    results: tuple[CaseResult, ...]
    state: State = State.COMPLETE
    ended: str = ""
    duration_s: float = 0.0

    @property
    def verdict(self) -> Outcome:
        """Over everything. A run in which nothing could be judged is inconclusive, not passed."""
        found = self._judged(self.results)
        return Outcome.INCONCLUSIVE if found is Outcome.SKIPPED else found

    def _judged(self, results: tuple[CaseResult, ...]) -> Outcome:
        """The worst of ``results``. Those of a run that did not come to its end are no pass: others were to come."""
        found = worst([result.outcome for result in results])
        return Outcome.INCONCLUSIVE if found is Outcome.PASS and self.state is not State.COMPLETE else found

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self.state is State.INTERRUPTED else EXIT_CODES.get(self.verdict, 0)

    def of_tier(self, tier: int) -> tuple[CaseResult, ...]:
        return tuple(result for result in self.results if result.tier == tier)

    def verdict_of(self, tier: int) -> Outcome:
        return self._judged(self.of_tier(tier))

    @property
    def tiers(self) -> dict[int, Outcome]:
        """The verdict of each tier that was run."""
        return {tier: self.verdict_of(tier) for tier in TIERS if self.of_tier(tier)}

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints: the report with its verdicts."""
        return {
            "verdict": self.verdict,
            "tiers": {TIERS[tier]: outcome for tier, outcome in self.tiers.items()},
            **self.model_dump(mode="json"),
        }
