"""Options of the plugin in the stack file."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Policy = Literal["kv-aware", "affinity", "least-loaded", "round-robin", "random"]

SESSION_POLICIES = ("kv-aware", "affinity")
"""Policies that know sessions; the others look at each request by itself."""

PER_REQUEST_HEADERS = ("x-request-id", "x-correlation-id", "x-trace-id", "traceparent")
"""Headers that proxies and tracing libraries make anew for each request."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2


class Options(BaseModel):
    """``plugins: {routing: {...}}``. None of them is needed."""

    model_config = ConfigDict(extra="forbid")

    policy: Policy = Field(
        "kv-aware",
        description="kv-aware keeps a session where its KV is and moves it when that replica is overloaded; affinity "
        "never moves it; least-loaded, round-robin and random know no sessions.",
    )
    session_header: str | None = Field(
        None, description="HTTP header that names the session; x-session-id when not given."
    )
    target_concurrency: int | None = Field(
        None, ge=1, description="Requests meant to run on one replica; the workload's concurrency when not given."
    )
    max_homes: int | None = Field(
        None, ge=1, le=8, description="Replicas that may hold a session's KV; 2 with kv-aware when not given."
    )
    overload_margin: int | None = Field(
        None,
        ge=1,
        description="Running requests above the mean of the replicas from which a replica counts as overloaded; 2 when "
        "not given.",
    )
    session_idle_s: float | None = Field(
        None, gt=0, description="Seconds after its last request until a session is forgotten; 1800 when not given."
    )

    @field_validator("session_header")
    @classmethod
    def _a_header_of_a_session(cls, header: str | None) -> str | None:
        if header is None:
            return None
        if not _TOKEN.fullmatch(header):
            raise ValueError(f"{header!r} is not the name of an HTTP header")
        if header.lower() in PER_REQUEST_HEADERS:
            raise ValueError(f"{header} is new in each request, so every request would be a session of its own")
        return header.lower()
