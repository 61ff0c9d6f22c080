"""What is measured: where requests go, and whose counters are read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """``url`` is where requests go, ``engines`` whose metrics are read (the replicas behind a router, or itself).

    ``spread`` are replicas that nothing stands before: users are spread over them, in an open loop sessions, and a
    session stays where it began.
    """

    name: str
    url: str
    engines: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()
    gpus: int = 1
    plan_hash: str | None = None
    planned_kv_tokens: int | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """Where requests go."""
        return self.spread or (self.url,)

    @property
    def rule(self) -> str:
        """What has to be said about where they go."""
        if len(self.spread) < 2:
            return ""
        return (
            f"{len(self.spread)} replicas without a router: users, and sessions of an open loop, take turns, and stay "
            "where they began."
        )
