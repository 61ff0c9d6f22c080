"""The numbers of the policies, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameters:
    """Defaults are the point of the measured frontier with the least recomputation whose variance stays below half of
    the mean with three standard deviations to spare (evidence/routing-simulation).

    For ``kv-aware``:

    ``max_homes``              replicas on which a session's KV is remembered
    ``overload_margin``        requests that a replica must carry above another before a turn leaves its KV for one
                               that has none of it
    ``home_margin``            the same before it goes to a home that holds an older prefix
    ``tokens_per_request``     prompt tokens worth computing again to take one request off the difference; it widens
                               both margins for long prompts
    ``pending_weight``         how much a token of prefill that waits on a replica counts, against one to compute again
    ``session_weight``         requests that a session counts as where its newest prefix is, besides those in flight
    ``split_requests``         requests of one session on one replica from which on it is split: those that come after
                               share the cost of a copy of their prefix
    ``cold_prefill_tokens``    prefill that may wait on a replica before it is given no more prompts that are cold there
    ``slow_start_s``           for so long a new replica is given one cold prompt at a time, and of the sessions that
                               are older than it only those that would have left their homes for another one as well
    ``rehome_margin``          requests above the fleet's mean, both averaged over ``rehome_window_s``, from which a
                               replica gives up idle sessions
    ``rehome_window_s``        time constant of those averages
    ``rehomes_per_s``          such moves a second for each replica of the fleet, at most
    ``kv_tokens``              KV pool of a replica; with it, prefixes are forgotten when its cache should have evicted
                               them. None: what each replica's metrics say of it, if they do
    ``kv_weight``              requests that a KV pool in use for a half counts as, growing as k / (1 - k)
    ``session_idle_s``         a session is forgotten after so long without a request
    ``max_sessions``           sessions remembered; the one idle for longest makes room

    For ``affinity``: ``load_bound``, the share of the fleet's mean load that a replica may carry before its sessions go
    to the next in their order (at least 1; infinity never moves a session).
    """

    max_homes: int = 6
    overload_margin: float = 2.0
    home_margin: float = 0.5
    tokens_per_request: float = 18_000.0
    pending_weight: float = 0.25
    session_weight: float = 0.2
    split_requests: int = 3
    cold_prefill_tokens: int = 200_000
    slow_start_s: float = 60.0
    rehome_margin: float = 3.0
    rehome_window_s: float = 120.0
    rehomes_per_s: float = 0.01
    kv_tokens: int | None = None
    kv_weight: float = 0.1
    session_idle_s: float = 1800.0
    max_sessions: int = 200_000
    load_bound: float = 1.25
