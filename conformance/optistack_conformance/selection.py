"""What is to be run: the options of the suite as one value, and the sizes of the two profiles."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

TIERS = {0: "contract", 1: "lossless", 2: "lossy"}
"""Tier numbers and their names; a plugin's own cases say which one they belong to."""


LONG_CONTEXT_TOKENS = 1024
"""Needles in contexts of this length and more are judged apart."""


class Profile(BaseModel):
    """Sample sizes. ``quick`` is meant to take 3 minutes and ``full`` 15, with SmolLM2-135M on two idle cores; what was
    measured stands in docs/conformance.md.

    ``sequences`` of ``sequence_tokens`` each are scored under every cache state; ``greedy_tokens`` are checked for
    their margin (a wrong token at rate r is missed with probability (1 - r)^n); ``sampled_tokens`` are drawn at
    temperature 1; ``items_per_suite`` caps the other suites of the evals; ``needles`` are put into contexts of each of
    ``needle_tokens``; ``structured_answers`` are asked for by one schema, and ``leak_requests`` made at once.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    sequences: int
    sequence_tokens: int
    greedy_tokens: int
    sampled_tokens: int
    items_per_suite: int
    needle_tokens: tuple[int, ...]
    needles: int
    structured_answers: int
    leak_requests: int


PROFILES = {
    "quick": Profile(
        name="quick",
        sequences=6,
        sequence_tokens=24,
        greedy_tokens=1_000,
        sampled_tokens=1_000,
        items_per_suite=16,
        needle_tokens=(256, 512, 1024, 2048),
        needles=4,
        structured_answers=60,
        leak_requests=160,
    ),
    "full": Profile(
        name="full",
        sequences=16,
        sequence_tokens=32,
        greedy_tokens=5_000,
        sampled_tokens=5_000,
        items_per_suite=96,
        needle_tokens=(512, 1024, 2048, 4096),
        needles=12,
        structured_answers=200,
        leak_requests=480,
    ),
}


class Selection(BaseModel):
    """A run of the suite.

    ``endpoint``       the server under test
    ``baseline``       the same model without what is under test; or ``baseline_file``, a recorded one
    ``record``         where to write what this endpoint measures as a baseline
    ``lossy``          what the candidate is allowed to lose: tier 2 judges it then instead of tier 1's comparisons
    ``tiers``          which to run; empty: 0 and 1, and 2 when ``lossy`` is set
    ``cases``          only cases whose id matches one of these patterns (``contract/stop-*``); empty: all of the tiers
    ``checkpoint``     a folder with tokenizer.json and the chat template: the oracle for prompt token counts
    ``kv_dtype``       overrides what the engine says of itself
    ``batch_invariant``  the engine promises results that do not depend on the batch: greedy text must then be equal
    ``acceptance_reference``  the acceptance length that the drafter reaches elsewhere (bonus token counted)
    ``tier_expected``  the stack has a cache tier below the device: not seeing a hit from it is then a failure
    ``plugins``        installed plugins whose own cases are run
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str
    baseline: str | None = None
    baseline_file: str | None = None
    record: str | None = None
    profile: Literal["quick", "full"] = "quick"
    lossy: Literal["fp8-kv", "nvfp4"] | None = None
    tiers: tuple[int, ...] = ()
    cases: tuple[str, ...] = ()
    checkpoint: str | None = None
    kv_dtype: str | None = None
    batch_invariant: bool = False
    acceptance_reference: float | None = Field(default=None, gt=0)
    tier_expected: bool = False
    plugins: tuple[str, ...] = ()
    plan_hash: str = ""
    seed: int = 0
    concurrency: int = Field(default=8, ge=2)
    timeout_s: float = Field(default=300.0, gt=0)
    api_key_variable: str = "OPTISTACK_API_KEY"

    @property
    def sizes(self) -> Profile:
        return PROFILES[self.profile]

    @property
    def chosen_tiers(self) -> tuple[int, ...]:
        return self.tiers or ((0, 1, 2) if self.lossy else (0, 1))
