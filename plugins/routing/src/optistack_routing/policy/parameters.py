"""The numbers of the policies, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameters:
    """Defaults are the point of the measured frontier with the least recomputation (evidence/routing-simulation).

    For ``kv-aware``:

    ``max_homes``              replicas on which a session's KV is remembered
    ``overload_margin``        requests that a replica must carry above another before a turn leaves its KV for that one
    ``tokens_per_request``     prompt tokens worth computing again to put a request on a replica with one request less;
                               it widens the margin for long prompts and narrows it for short ones
    ``pending_weight``         how much a token of prefill that waits on a replica counts, against one to compute again
    ``split_requests``         requests of one session on one replica from which the session is split
    ``cold_prefill_tokens``    prefill that may wait on a replica before it is given no more sessions that are cold there
    ``slow_start_s``           for so long a new replica is given one cold prompt at a time
    ``rehome_margin``          requests above the fleet's mean, averaged over ``rehome_window_s``, from which a replica
                               gives up idle sessions
    ``rehome_window_s``        time constant of that average
    ``rehomes_per_s``          such moves a second and replica of the fleet, at most
    ``kv_tokens``              KV pool of a replica; with it, prefixes are forgotten when its cache has evicted them.
                               None when unknown
    ``kv_weight``              requests that a KV pool in use for a half counts as, growing as k / (1 - k)
    ``session_idle_s``         a session is forgotten after so long without a request
    ``max_sessions``           sessions remembered; the one idle for longest makes room

    For ``affinity``: ``load_bound``, the share of the fleet's mean load that a replica may carry before its sessions go
    to the next in their order (at least 1; infinity never moves a session).
    """

    max_homes: int = 3
    overload_margin: float = 2.0
    tokens_per_request: float = 40_000.0
    pending_weight: float = 0.5
    split_requests: int = 4
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
