"""``Report``: everything that a run found, as a value; the reports are renderings of it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from optistack_conformance.outcomes import CaseResult, Outcome, worst
from optistack_conformance.selection import TIERS

EXIT_CODES = {Outcome.FAIL: 1, Outcome.INCONCLUSIVE: 4}


class Subject(BaseModel):
    """What a server was when it was measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    where: str
    engine: str
    engine_version: str
    model: str
    kv_dtype: str | None = None


class Report(BaseModel):
    """``settings`` are those of the selection; ``chat_template_hash`` is None where no template could be read."""

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
    duration_s: float = 0.0

    @property
    def verdict(self) -> Outcome:
        """Over everything. A run in which nothing could be judged is inconclusive, not passed."""
        found = worst([result.outcome for result in self.results])
        return Outcome.INCONCLUSIVE if found is Outcome.SKIPPED else found

    @property
    def exit_code(self) -> int:
        return EXIT_CODES.get(self.verdict, 0)

    def of_tier(self, tier: int) -> tuple[CaseResult, ...]:
        return tuple(result for result in self.results if result.tier == tier)

    def verdict_of(self, tier: int) -> Outcome:
        return worst([result.outcome for result in self.of_tier(tier)])

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
