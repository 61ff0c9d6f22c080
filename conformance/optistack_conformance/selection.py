"""What is to be run: the options of the suite as one value, and the sizes of the two profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from optistack.errors import InputError, nearest
from optistack.memory.kv import KV_DTYPES

TIERS = {0: "contract", 1: "lossless", 2: "lossy"}
"""Tier numbers and their names; a plugin's own cases say which one they belong to."""


SAID_KV_DTYPES = (*KV_DTYPES, "int8")
"""What may be said of KV where the engine says nothing: what can be planned with, and int8, which engines have beside.
The bounds depend on it, so that a slip of the pen must not choose one."""

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

    @field_validator("tiers")
    @classmethod
    def _known(cls, tiers: tuple[int, ...]) -> tuple[int, ...]:
        for tier in tiers:
            if tier not in TIERS:
                raise ValueError(f"It should be one of {_listed(TIERS)}.")
        return tiers

    @field_validator("kv_dtype")
    @classmethod
    def _has_a_bound(cls, dtype: str | None) -> str | None:
        if dtype not in (None, *SAID_KV_DTYPES):
            raise ValueError(f"It should be one of {', '.join(SAID_KV_DTYPES)}.")
        return dtype

    @field_validator("endpoint", "baseline")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is not None:
            try:
                parts = urlsplit(url)
            except ValueError:  # brackets that do not match
                parts = urlsplit("")
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("A URL is like http://127.0.0.1:8000.")
        return url

    @property
    def sizes(self) -> Profile:
        return PROFILES[self.profile]

    @property
    def chosen_tiers(self) -> tuple[int, ...]:
        return self.tiers or ((0, 1, 2) if self.lossy else (0, 1))


def read_selection(settings: Mapping[str, Any], *, option: Callable[[str], str] = str) -> Selection:
    """``settings`` as a ``Selection``. ``option`` tells how the user writes a setting of that name.

    Raises InputError, one sentence that names the setting, with what it takes as the fix.
    """
    try:
        selection = Selection.model_validate(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise InputError(f"The suite has no setting {key!r}.", fix=nearest(key, Selection.model_fields)) from error
        own = first["type"] == "value_error"  # from a validator above, which says the fix
        takes = first["msg"].removeprefix("Value error, ") if own else f"It {first['msg'].removeprefix('Input ')}."
        raise InputError(f"{option(key)} {_text(settings[key])} is not accepted.", fix=takes) from error
    if selection.baseline is not None and selection.baseline_file is not None:
        raise InputError("There are two baselines.", fix="Give a URL or a recorded file, not both.")
    return selection


def _listed(words: Mapping[int, str]) -> str:
    return ", ".join(f"{number} ({name})" for number, name in words.items())


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
