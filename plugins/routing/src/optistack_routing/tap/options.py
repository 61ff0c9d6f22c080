"""What of the traffic is recorded, and where to."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

SECRETS = (
    r"[\w.+-]@[\w-]+\.\w+",  # e-mail addresses; one letter before the @, or a long word takes time in its square
    r"\b(?:sk|pk|ghp|gho|glpat|xox[abp])[-_][A-Za-z0-9_-]{16,}",  # keys of well-known services
    r"\bAKIA[0-9A-Z]{16}\b",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"\b(?:\d[ -]?){13,19}\b",  # card numbers
)


class Tap(BaseModel):
    """Option ``tap`` of the router.

    ``folder``   where recordings go, readable by this user only
    ``share``    of the requests that can be recorded, drawn at random
    ``max_mb``   of recordings in the folder; nothing is recorded beyond
    ``redact``   regular expressions: a request whose prompt or answer one of them finds is not recorded
    ``shard``    sequences of one file; what a router that is killed loses at most
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path
    share: float = Field(0.01, gt=0, le=1)
    max_mb: float = Field(256.0, gt=0)
    redact: tuple[str, ...] = SECRETS
    shard: int = Field(64, ge=1, le=4096)

    @field_validator("redact")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return patterns
