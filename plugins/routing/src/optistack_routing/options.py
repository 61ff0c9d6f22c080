"""Options of the plugin in the stack file."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from optistack.errors import nearest
from optistack_routing.policy.parameters import Parameters

Policy = Literal["kv-aware", "affinity", "least-loaded", "round-robin", "random"]

SESSION_POLICIES = ("kv-aware", "affinity")
"""Policies that know sessions; the others look at each request by itself."""

PER_REQUEST_HEADERS = ("x-request-id", "x-correlation-id", "x-trace-id", "traceparent")
"""Headers that proxies and tracing libraries make anew for each request."""

OWN_OPTIONS = ("max_homes", "overload_margin", "session_idle_s", "load_bound")
"""Parameters of the policies that are options by themselves."""

_DEFAULT = Parameters()
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2


def header_of_a_session(header: str) -> str:
    """``header`` as it is looked for. Raises ValueError for one that cannot name a session."""
    if not _TOKEN.fullmatch(header):
        raise ValueError(f"{header!r} is not the name of an HTTP header")
    if header.lower() in PER_REQUEST_HEADERS:
        raise ValueError(f"{header} is new in each request, so every request would be a session of its own")
    return header.lower()


class Options(BaseModel):
    """``plugins: {routing: {...}}``. None of them is needed."""

    model_config = ConfigDict(extra="forbid")

    policy: Policy = Field(
        "kv-aware",
        description="kv-aware keeps a session where its KV is and moves it when that replica is overloaded; affinity "
        "hashes it onto a replica, with bounded load; least-loaded, round-robin and random know no sessions.",
    )
    front: bool | None = Field(
        None, description="Start the router before the replicas; on with several of them when not given."
    )
    session_header: str | None = Field(
        None, description="HTTP header that names the session, looked for first; x-session-id when not given."
    )
    target_concurrency: int | None = Field(
        None, ge=1, description="Requests meant to run on one replica; the workload's concurrency when not given."
    )
    max_homes: int | None = Field(
        None,
        ge=1,
        le=64,
        description=f"Replicas on which a session's KV is remembered (kv-aware); {_DEFAULT.max_homes} when not given.",
    )
    overload_margin: float | None = Field(
        None,
        ge=0,
        description="Requests that a replica may carry above another before a session leaves its KV for that one "
        f"(kv-aware); {_DEFAULT.overload_margin:g} when not given.",
    )
    session_idle_s: float | None = Field(
        None,
        gt=0,
        description="Seconds after its last request until a session is forgotten (kv-aware); "
        f"{_DEFAULT.session_idle_s:g} when not given.",
    )
    load_bound: float | None = Field(
        None,
        ge=1,
        description="Share of the mean load from which affinity sends a session on to its next replica; .inf never "
        f"does; {_DEFAULT.load_bound:g} when not given.",
    )
    precise: bool = Field(
        False, description="Follow what each replica's KV cache holds by the engine's KV events, not by estimate."
    )
    parameters: dict[str, int | float] = Field(
        default_factory=dict, description="Further numbers of kv-aware by their names in the plugin's README."
    )

    @field_validator("session_header")
    @classmethod
    def _a_header_of_a_session(cls, header: str | None) -> str | None:
        return None if header is None else header_of_a_session(header)

    @field_validator("parameters")
    @classmethod
    def _parameters_are_known(cls, given: dict[str, Any]) -> dict[str, Any]:
        known = [field.name for field in fields(Parameters) if field.name not in OWN_OPTIONS]
        for name in given:
            if name in OWN_OPTIONS:
                raise ValueError(f"{name} is an option of its own")
            if name not in known:
                raise ValueError(f"the policies have no parameter {name!r}. {nearest(name, known)}".strip())
        return given
