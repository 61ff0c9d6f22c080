"""What a routing policy sees, and what it says.

A policy is pure: it opens no socket, reads no clock and draws no random number of its own. Time comes in with every
call, in seconds of any monotonic clock. The data plane and the simulator drive the same policies through the same
:class:`~optistack_routing.policy.ledger.Ledger`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


@dataclass(slots=True, eq=False)
class Replica:
    """One engine replica as the router sees it. The ledger counts; whoever watches health sets the rest.

    ``name``                    what it is called everywhere, unique in the fleet; its URL in the data plane
    ``joined_s``                when it joined
    ``in_flight``               requests that were sent to it and have not ended, the unacknowledged ones included
    ``pending_prefill_tokens``  prompt tokens, less what its cache is believed to hold, of those without a first byte
    ``kv_utilisation``          share of its KV pool in use, 0 to 1, as last read from its metrics; None when unknown
    ``kv_tokens``               its KV pool, as its metrics say; None when they do not
    ``accepts``                 whether it may be given requests: healthy, its circuit closed, not draining
    """

    name: str
    joined_s: float = 0.0
    in_flight: int = 0
    pending_prefill_tokens: int = 0
    kv_utilisation: float | None = None
    kv_tokens: int | None = None
    accepts: bool = True


@dataclass(slots=True)
class Fleet:
    """The replicas by name, in the order in which they joined."""

    replicas: dict[str, Replica] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())

    def __len__(self) -> int:
        return len(self.replicas)

    def get(self, name: str) -> Replica | None:
        return self.replicas.get(name)


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a request before it is sent.

    ``session``        its session, or None when it names none
    ``prompt_tokens``  estimated from the size of its body
    ``prefix``         a hash of the head of its prompt, where a policy may use one for requests without a session
    ``cached_tokens``  prompt tokens that each replica's block index holds (precise mode); of a replica that is missing
                       in it nothing is known. None without an index
    ``avoid``          replicas that have just failed this request
    """

    session: str | None = None
    prompt_tokens: int = 0
    prefix: bytes | None = None
    cached_tokens: dict[str, int] | None = None
    avoid: frozenset[str] = frozenset()


class Reason(StrEnum):
    """Why a replica was chosen; a label of the router's metrics."""

    PLACED = "placed"  # a new session, or no session at all
    HOME = "home"  # where the session's newest prefix is
    OTHER_HOME = "other_home"  # another replica that holds some of it
    SPLIT = "split"  # one more home for a session with many requests at once
    SPILLED = "spilled"  # its homes are overloaded
    REHOMED = "rehomed"  # an idle session moved to even out the load
    FAILED_OVER = "failed_over"  # its homes are gone or do not accept requests


@dataclass(frozen=True, slots=True)
class Choice:
    """``predicted_cached_tokens``: prompt tokens that the replica is believed to hold already."""

    replica: str
    reason: Reason
    predicted_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What the engine's answer said of a request; None where it said nothing."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class Policy(Protocol):
    """Chooses a replica for each request. Every call is told the time; none of them may raise.

    A choice that the ledger takes is followed by exactly one ``ended``.
    """

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        """The replica for ``request``; None when no replica accepts it (all avoided, full, or gone)."""

    def placed(self, request: Request, choice: Choice, now_s: float) -> None:
        """``choice`` was taken, and the replica's counts now include the request."""

    def ended(self, request: Request, choice: Choice, now_s: float, *, served: bool, usage: Usage | None) -> None:
        """The request has left the replica; ``served`` when it was answered to its end, so that its prefix is there."""

    def left(self, replica: str, now_s: float) -> None:
        """``replica`` is no longer in the fleet: forget what it held."""

    def finish_session(self, session: str) -> bool:
        """Forget ``session``; whether it was known."""

    def expire(self, now_s: float) -> None:
        """Forget what has been idle for too long. Called about once a second."""

    def sessions(self) -> dict[int, int]:
        """How many sessions have that many homes; empty for a policy without sessions."""
